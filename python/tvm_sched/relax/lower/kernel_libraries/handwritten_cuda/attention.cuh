// Attention in one kernel: softmax(scale * Q K' + mask) V without the matrix of scores (Dao, "FlashAttention-2", 2023).
//
// A block computes a tile of query rows of one head, going through the keys in tiles: scores of a tile, the running maximum
// and sum of each row (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), the product with the
// values. All sums are float32. A `Shape` says everything that is known at compile time:
//
//   Element, Mask, Result            types of Q, K and V; of the mask; of the result
//   batch, groups, heads             heads of a group may share keys and values
//   rows, keys, width, out           of a head; width of queries and keys, out of values and the result
//   query(), key(), value(), mask(), result()  offset and strides of (batch, group, head, row or key, column), in elements
//   scale, masked, causal, shift     query row i sees the keys up to i + shift where it is causal
//   safe                             whether rows without a key give 0 rather than NaN
//   packed                           heads of a group whose rows lie in one tile: they share keys and values
//   splits                           parts of the keys, each by blocks of their own, joined by `join_attention`
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tensor_cores.cuh"

namespace tvm_sched {

constexpr float kMinusInfinity = -INFINITY;

struct Strides {
  long long offset, batch, group, head, row, column;
};

/// The heads and the part of the keys that a block has: blocks are (heads, tiles of rows, parts of keys).
template <class Shape>
struct Task {
  static constexpr int rows = Shape::packed * Shape::rows;     // of the heads of a block
  static constexpr int tiles = Shape::heads / Shape::packed;  // of a group's heads
  int batch = blockIdx.x / tiles / Shape::groups, group = blockIdx.x / tiles % Shape::groups;
  int first = blockIdx.x % tiles * Shape::packed;  // head
  int begin, end;                                  // keys

  __device__ Task(int first_row, int tile_rows) {
    constexpr int part = ((Shape::keys + 63) / 64 + Shape::splits - 1) / Shape::splits * 64;
    begin = blockIdx.z * part;
    end = min(Shape::keys, begin + part);
    if (Shape::causal && Shape::packed == 1) end = min(end, first_row + tile_rows + Shape::shift);
    end = max(end, begin);
  }

  /// The place of a row's first element; of keys and values, those of the first head.
  __device__ long long Place(const Strides& s, int row) const {
    return s.offset + batch * s.batch + group * s.group + (first + row / Shape::rows) * s.head +
           (row % Shape::rows) * s.row;
  }
  __device__ long long PlaceOfKey(const Strides& s, int key) const {
    return s.offset + batch * s.batch + group * s.group + first * s.head + key * s.row;
  }
};

/// Copy rows of a matrix into shared memory, zeros behind its end.
template <class Element, int kRows, int kColumns, int kStride, int kThreads, bool kVector, class Place>
__device__ void LoadTile(Element* tile, const Element* data, int rows, int columns, long long column_stride, Place place) {
  constexpr int kLanes = kVector ? 16 / sizeof(Element) : 1;
  constexpr int kParts = kColumns / kLanes;
  for (int i = threadIdx.x; i < kRows * kParts; i += kThreads) {
    const int row = i / kParts, column = i % kParts * kLanes;
    Element* to = tile + row * kStride + column;
    if constexpr (kVector) {
      if (row < rows && column < columns) {
        CopyAsync(to, data + place(row) + column);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    } else {
      *to = row < rows && column < columns ? data[place(row) + column * column_stride] : Element(0.0f);
    }
  }
}

template <class Shape>
__device__ float Masked(float score, const typename Shape::Mask* mask, long long place, int row, int key) {
  if (key >= Shape::keys || (Shape::causal && key > row + Shape::shift)) return kMinusInfinity;
  if constexpr (Shape::masked) score += static_cast<float>(mask[place + key * Shape::mask().column]);
  return score;
}

/// What the sum of a row's exponentials makes of it.
template <class Shape>
__device__ float Normaliser(float sum) {
  return Shape::safe && sum == 0 ? 0.0f : 1.0f / sum;
}

/// What a part of the keys leaves of a row for `join_attention`: out + 2 numbers.
template <class Shape>
__device__ long long PlaceOfPart(int part, int row) {
  constexpr long long kHeads = (long long)Shape::batch * Shape::groups * Task<Shape>::tiles;
  return ((part * kHeads + blockIdx.x) * Task<Shape>::rows + row) * (Shape::out + 2);
}

/// For float16 and bfloat16: tiles of 64 rows, 16 a warp, by tensor cores.
template <class Shape, int kKeys>
__device__ void attend_half(const typename Shape::Element* q, const typename Shape::Element* k,
                            const typename Shape::Element* v, const typename Shape::Mask* mask,
                            typename Shape::Result* result, float* parts) {
  using Element = typename Shape::Element;
  constexpr int kThreads = 128, kRows = 64;
  constexpr int kWidth = (Shape::width + 15) / 16 * 16, kOut = (Shape::out + 15) / 16 * 16;
  constexpr int kWide = kWidth + 8, kLong = kOut + 8;  // rows that begin in different banks
  extern __shared__ __align__(16) unsigned char shared[];
  Element* tile_q = reinterpret_cast<Element*>(shared);
  Element* tile_k = tile_q + kRows * kWide;
  Element* tile_v = tile_k + kKeys * kWide;

  const int first_row = blockIdx.y * kRows;
  const Task<Shape> task(first_row, kRows);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;

  const auto load_k = [&](int begin) {
    LoadTile<Element, kKeys, kWidth, kWide, kThreads, Shape::vector_k>(
        tile_k, k, task.end - begin, Shape::width, Shape::key().column, [&](int row) { return task.PlaceOfKey(Shape::key(), begin + row); });
    CommitCopies();
  };
  const auto load_v = [&](int begin) {
    LoadTile<Element, kKeys, kOut, kLong, kThreads, Shape::vector_v>(
        tile_v, v, task.end - begin, Shape::out, Shape::value().column, [&](int row) { return task.PlaceOfKey(Shape::value(), begin + row); });
    CommitCopies();
  };

  LoadTile<Element, kRows, kWidth, kWide, kThreads, Shape::vector_q>(
      tile_q, q, Task<Shape>::rows - first_row, Shape::width, Shape::query().column,
      [&](int row) { return task.Place(Shape::query(), first_row + row); });
  load_k(task.begin);

  float sums[2] = {0, 0}, largest[2] = {kMinusInfinity, kMinusInfinity};
  float output[kOut / 8][4] = {};
  int rows[2];         // of this thread: in the tensor of one head
  long long places[2] = {};  // of these in the mask
  for (int h = 0; h < 2; ++h) {
    const int row = min(first_row + warp * 16 + group + h * 8, Task<Shape>::rows - 1);
    rows[h] = row % Shape::rows;
    if constexpr (Shape::masked) places[h] = task.Place(Shape::mask(), row);
  }

  for (int begin = task.begin; begin < task.end; begin += kKeys) {
    WaitForCopies();
    __syncthreads();
    load_v(begin);
    float scores[kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kWidth; d += 16) {
      unsigned a[4];
      LoadA(a, tile_q + warp * 16 * kWide + d, kWide);
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        unsigned b[4];
        LoadB(b, tile_k + n * kWide + d, kWide);
        MultiplyAdd<Element>(scores[n / 8], a, b);
        MultiplyAdd<Element>(scores[n / 8 + 1], a, b + 2);
      }
    }
    WaitForCopies();
    __syncthreads();
    if (begin + kKeys < task.end) load_k(begin + kKeys);

    // Scores in powers of 2. Of a tile of which each row sees each key, no element is looked at.
    const bool whole = !Shape::masked && begin + kKeys <= task.end &&
                       (!Shape::causal || (Shape::packed == 1 && begin + kKeys - 1 <= first_row + warp * 16 + Shape::shift));
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int h = c / 2, key = begin + n * 8 + pair + c % 2;
        if (whole) {
          scores[n][c] *= Shape::scale * kLog2E;
        } else {
          scores[n][c] = key < task.end ? Masked<Shape>(scores[n][c] * Shape::scale, mask, places[h], rows[h], key) * kLog2E
                                        : kMinusInfinity;
        }
        most[h] = fmaxf(most[h], scores[n][c]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], 1));
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], 2));
      const float base = most[h] == kMinusInfinity ? 0 : most[h];
      const float factor = exp2f(largest[h] - base);
      largest[h] = most[h];
      sums[h] *= factor;
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n) {
        output[n][2 * h] *= factor;
        output[n][2 * h + 1] *= factor;
      }
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int c = 2 * h; c < 2 * h + 2; ++c) {
          scores[n][c] = exp2f(scores[n][c] - base);
          sums[h] += scores[n][c];
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys; n += 16) {
      const unsigned a[4] = {Pack<Element>(scores[n / 8][0], scores[n / 8][1]),
                             Pack<Element>(scores[n / 8][2], scores[n / 8][3]),
                             Pack<Element>(scores[n / 8 + 1][0], scores[n / 8 + 1][1]),
                             Pack<Element>(scores[n / 8 + 1][2], scores[n / 8 + 1][3])};
#pragma unroll
      for (int d = 0; d < kOut; d += 16) {
        unsigned b[4];
        LoadTransposedB(b, tile_v + n * kLong + d, kLong);
        MultiplyAdd<Element>(output[d / 8], a, b);
        MultiplyAdd<Element>(output[d / 8 + 1], a, b + 2);
      }
    }
  }
  WaitForCopies();

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sums[h] += __shfl_xor_sync(0xffffffffu, sums[h], 1);
    sums[h] += __shfl_xor_sync(0xffffffffu, sums[h], 2);
    const int row = first_row + warp * 16 + group + h * 8;
    if (row >= Task<Shape>::rows) continue;
    const float factor = Shape::splits > 1 ? 1.0f : Normaliser<Shape>(sums[h]);
    float* part = Shape::splits > 1 ? parts + PlaceOfPart<Shape>(blockIdx.z, row) : nullptr;
    typename Shape::Result* to = result + task.Place(Shape::result(), row);
    if (Shape::splits > 1 && pair == 0) {
      part[Shape::out] = largest[h] / kLog2E;
      part[Shape::out + 1] = sums[h];
    }
#pragma unroll
    for (int n = 0; n < kOut / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = n * 8 + pair + c;
        if (column >= Shape::out) continue;
        const float value = output[n][2 * h + c] * factor;
        if constexpr (Shape::splits > 1) {
          part[column] = value;
        } else {
          to[column * Shape::result().column] = static_cast<typename Shape::Result>(value);
        }
      }
    }
  }
}

/// For float32: 16 groups of rows and 8 of columns; each thread has kRows / 16 rows, and every eighth key and column.
template <class Shape, int kRows, int kKeys>
__device__ void attend_float(const float* q, const float* k, const float* v, const typename Shape::Mask* mask,
                             typename Shape::Result* result, float* parts) {
  constexpr int kThreads = 128, kMine = kRows / 16, kScores = kKeys / 8;
  constexpr int kWidth = (Shape::width + 3) / 4 * 4, kOut = (Shape::out + 31) / 32 * 32;
  constexpr int kWide = kWidth + 4, kProbabilities = kKeys + 4;
  extern __shared__ __align__(16) unsigned char shared[];
  float* tile_q = reinterpret_cast<float*>(shared);
  float* tile_k = tile_q + kRows * kWide;
  float* tile_v = tile_k + kKeys * kWide;
  float* tile_p = tile_v + kKeys * kOut;

  const int first_row = blockIdx.y * kRows;
  const Task<Shape> task(first_row, kRows);
  const int mine = threadIdx.x / 8, lane = threadIdx.x % 8;

  LoadTile<float, kRows, kWidth, kWide, kThreads, Shape::vector_q>(
      tile_q, q, Task<Shape>::rows - first_row, Shape::width, Shape::query().column,
      [&](int row) { return task.Place(Shape::query(), first_row + row); });

  float sums[kMine], largest[kMine], output[kMine][kOut / 8];
  int rows[kMine];
  long long places[kMine] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    sums[i] = 0;
    largest[i] = kMinusInfinity;
    for (int d = 0; d < kOut / 8; ++d) output[i][d] = 0;
    const int row = min(first_row + mine + 16 * i, Task<Shape>::rows - 1);
    rows[i] = row % Shape::rows;
    if constexpr (Shape::masked) places[i] = task.Place(Shape::mask(), row);
  }

  for (int begin = task.begin; begin < task.end; begin += kKeys) {
    LoadTile<float, kKeys, kWidth, kWide, kThreads, Shape::vector_k>(
        tile_k, k, task.end - begin, Shape::width, Shape::key().column, [&](int row) { return task.PlaceOfKey(Shape::key(), begin + row); });
    LoadTile<float, kKeys, kOut, kOut, kThreads, Shape::vector_v>(
        tile_v, v, task.end - begin, Shape::out, Shape::value().column, [&](int row) { return task.PlaceOfKey(Shape::value(), begin + row); });
    CommitCopies();
    WaitForCopies();
    __syncthreads();

    float scores[kMine][kScores] = {};
#pragma unroll 4
    for (int d = 0; d < kWidth; d += 4) {
      float4 a[kMine];
#pragma unroll
      for (int i = 0; i < kMine; ++i) a[i] = *reinterpret_cast<float4*>(tile_q + (mine + 16 * i) * kWide + d);
#pragma unroll
      for (int j = 0; j < kScores; ++j) {
        const float4 b = *reinterpret_cast<float4*>(tile_k + (lane + 8 * j) * kWide + d);
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
          scores[i][j] += a[i].x * b.x + a[i].y * b.y + a[i].z * b.z + a[i].w * b.w;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      float most = largest[i];
#pragma unroll
      for (int j = 0; j < kScores; ++j) {
        const int key = begin + lane + 8 * j;
        scores[i][j] = key < task.end ? Masked<Shape>(scores[i][j] * Shape::scale, mask, places[i], rows[i], key)
                                      : kMinusInfinity;
        most = fmaxf(most, scores[i][j]);
      }
      for (int other = 1; other < 8; other *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, other));
      const float base = most == kMinusInfinity ? 0 : most;
      const float factor = expf(largest[i] - base);
      largest[i] = most;
      sums[i] *= factor;
#pragma unroll
      for (int d = 0; d < kOut / 8; ++d) output[i][d] *= factor;
#pragma unroll
      for (int j = 0; j < kScores; ++j) {
        const float p = expf(scores[i][j] - base);
        sums[i] += p;
        tile_p[(mine + 16 * i) * kProbabilities + lane + 8 * j] = p;
      }
    }
    __syncwarp();  // the eight threads of a row are in one warp
#pragma unroll 4
    for (int key = 0; key < kKeys; ++key) {
      float p[kMine];
#pragma unroll
      for (int i = 0; i < kMine; ++i) p[i] = tile_p[(mine + 16 * i) * kProbabilities + key];
#pragma unroll
      for (int d = 0; d < kOut / 32; ++d) {
        const float4 b = *reinterpret_cast<float4*>(tile_v + key * kOut + d * 32 + lane * 4);
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
          output[i][d * 4] += p[i] * b.x;
          output[i][d * 4 + 1] += p[i] * b.y;
          output[i][d * 4 + 2] += p[i] * b.z;
          output[i][d * 4 + 3] += p[i] * b.w;
        }
      }
    }
    __syncthreads();
  }
  WaitForCopies();

#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    for (int other = 1; other < 8; other *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], other);
    const int row = first_row + mine + 16 * i;
    if (row >= Task<Shape>::rows) continue;
    const float factor = Shape::splits > 1 ? 1.0f : Normaliser<Shape>(sums[i]);
    float* part = Shape::splits > 1 ? parts + PlaceOfPart<Shape>(blockIdx.z, row) : nullptr;
    typename Shape::Result* to = result + task.Place(Shape::result(), row);
    if (Shape::splits > 1 && lane == 0) {
      part[Shape::out] = largest[i];
      part[Shape::out + 1] = sums[i];
    }
#pragma unroll
    for (int d = 0; d < kOut / 8; ++d) {
      const int column = d / 4 * 32 + lane * 4 + d % 4;
      if (column >= Shape::out) continue;
      const float value = output[i][d] * factor;
      if constexpr (Shape::splits > 1) {
        part[column] = value;
      } else {
        to[column * Shape::result().column] = static_cast<typename Shape::Result>(value);
      }
    }
  }
}

/// The parts of the keys together: a block for each row, a thread for each column.
template <class Shape>
__device__ void join_attention(const float* parts, typename Shape::Result* result) {
  const int row = blockIdx.y;
  const Task<Shape> task(row, 1);
  float most = kMinusInfinity, sum = 0;
  for (int s = 0; s < Shape::splits; ++s) most = fmaxf(most, parts[PlaceOfPart<Shape>(s, row) + Shape::out]);
  const float base = most == kMinusInfinity ? 0 : most;
  for (int s = 0; s < Shape::splits; ++s) {
    const float* part = parts + PlaceOfPart<Shape>(s, row);
    sum += part[Shape::out + 1] * expf(part[Shape::out] - base);
  }
  const float factor = Normaliser<Shape>(sum);
  for (int column = threadIdx.x; column < Shape::out; column += blockDim.x) {
    float value = 0;
    for (int s = 0; s < Shape::splits; ++s) {
      const float* part = parts + PlaceOfPart<Shape>(s, row);
      value += part[column] * expf(part[Shape::out] - base);
    }
    result[task.Place(Shape::result(), row) + column * Shape::result().column] =
        static_cast<typename Shape::Result>(value * factor);
  }
}

}  // namespace tvm_sched
