// Keys and values of sequences, and attention over them.
//
// Both lie in states that are updated in place: (sequences, key heads, ...), with the keys of 16
// positions as (width, 16), so that a query's scores need no sum across lanes, and the values of a
// position one after the other. A position `p` lies at place `p % capacity`: with a sliding window
// the capacity may be smaller than the context, and old positions are overwritten.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/language/kernels.h"
#include "kernels/onednn/vector_math.h"

namespace tvm_sched::language {

using runtime::JsonCursor;

namespace {

constexpr int kTile = 16;
constexpr int kMostQueries = 8;
using Floats = onednn::VectorOf<float, kTile>::Type;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

template <typename Number = float>
Number* DataOf(const DLTensor* tensor) {
  return reinterpret_cast<Number*>(static_cast<std::byte*>(tensor->data) + tensor->byte_offset);
}

inline __attribute__((always_inline)) void Load(const float* from, Floats& to) {
  std::memcpy(&to, from, sizeof to);
}

struct Heads {
  std::int64_t queries, keys, width, capacity;

  /// Of one sequence and key head.
  std::int64_t Base(std::int64_t sequence, std::int64_t head) const {
    return (sequence * keys + head) * capacity * width;
  }
};

Heads ReadHeads(const JsonCursor& about) {
  Heads heads{about.Field("heads").Int(1, 1 << 16), about.Field("key_heads").Int(1, 1 << 16),
              about.Field("width").Int(1, 1 << 12), about.Field("capacity").Int(kTile, 1 << 28)};
  if (heads.queries % heads.keys != 0) about.Fail("key_heads must divide heads");
  if (heads.capacity % kTile != 0) about.Fail("capacity must be a multiple of 16");
  return heads;
}

/// scores[q * stride + lane] of the keys of 16 positions.
template <int kQueries>
inline __attribute__((always_inline)) void Scores(const float* const* queries, const float* keys,
                                                  std::int64_t width, float scale, float* scores,
                                                  std::int64_t stride) {
  Floats sums[kQueries] = {}, odd = {}, k;
  if constexpr (kQueries == 1) {
    std::int64_t d = 0;
    for (; d + 2 <= width; d += 2) {
      Load(keys + d * kTile, k);
      sums[0] += queries[0][d] * k;
      Load(keys + (d + 1) * kTile, k);
      odd += queries[0][d + 1] * k;
    }
    if (d < width) {
      Load(keys + d * kTile, k);
      sums[0] += queries[0][d] * k;
    }
    sums[0] += odd;
  } else {
    for (std::int64_t d = 0; d < width; ++d) {
      Load(keys + d * kTile, k);
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; ++q) sums[q] += queries[q][d] * k;
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    const Floats scaled = sums[q] * scale;
    std::memcpy(scores + q * stride, &scaled, sizeof scaled);
  }
}

TVM_SCHED_VERSIONS void ScoresOf(const float* const* queries, int count, const float* keys,
                                 std::int64_t width, float scale, float* scores,
                                 std::int64_t stride) {
  int q = 0;
  for (; q + 8 <= count; q += 8) {
    Scores<8>(queries + q, keys, width, scale, scores + q * stride, stride);
  }
  for (; q + 4 <= count; q += 4) {
    Scores<4>(queries + q, keys, width, scale, scores + q * stride, stride);
  }
  for (; q + 2 <= count; q += 2) {
    Scores<2>(queries + q, keys, width, scale, scores + q * stride, stride);
  }
  if (q < count) Scores<1>(queries + q, keys, width, scale, scores + q * stride, stride);
}

/// Replace scores by their softmax; there is at least one that is finite.
TVM_SCHED_VERSIONS void Softmax(float* scores, std::int64_t count) {
  float largest = kNothing;
  for (std::int64_t k = 0; k < count; ++k) largest = scores[k] > largest ? scores[k] : largest;
  Floats sums = {};
  std::int64_t k = 0;
  for (; k + kTile <= count; k += kTile) {
    Floats powers;
#pragma GCC ivdep
    for (int lane = 0; lane < kTile; ++lane) {
      scores[k + lane] = onednn::Exponential(scores[k + lane] - largest);
    }
    Load(scores + k, powers);
    sums += powers;
  }
  float sum = 0;
  for (int lane = 0; lane < kTile; ++lane) sum += sums[lane];
  for (; k < count; ++k) sum += scores[k] = onednn::Exponential(scores[k] - largest);
  const float factor = 1 / sum;
  for (std::int64_t i = 0; i < count; ++i) scores[i] *= factor;
}

/// result[q] += weights[q][k] * values[k], for kCount numbers of the width.
template <int kQueries, int kVectors>
inline __attribute__((always_inline)) void Mix(const float* weights, std::int64_t stride,
                                               const float* values, std::int64_t width,
                                               std::int64_t count, float* const* results,
                                               std::int64_t from) {
  Floats sums[kQueries][kVectors], value;
  for (int q = 0; q < kQueries; ++q) {
    for (int v = 0; v < kVectors; ++v) Load(results[q] + from + v * kTile, sums[q][v]);
  }
  for (std::int64_t k = 0; k < count; ++k) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Load(values + k * width + from + v * kTile, value);
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; ++q) sums[q][v] += weights[q * stride + k] * value;
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(results[q] + from + v * kTile, &sums[q][v], sizeof sums[q][v]);
    }
  }
}

template <int kQueries>
inline __attribute__((always_inline)) void MixAll(const float* weights, std::int64_t stride,
                                                  const float* values, std::int64_t width,
                                                  std::int64_t count, float* const* results) {
  std::int64_t from = 0;
  if constexpr (kQueries == 1) {
    for (; from + 4 * kTile <= width; from += 4 * kTile) {
      Mix<1, 4>(weights, stride, values, width, count, results, from);
    }
  }
  for (; from + 2 * kTile <= width; from += 2 * kTile) {
    Mix<kQueries, 2>(weights, stride, values, width, count, results, from);
  }
  for (; from + kTile <= width; from += kTile) {
    Mix<kQueries, 1>(weights, stride, values, width, count, results, from);
  }
  if (from == width) return;
  for (int q = 0; q < kQueries; ++q) {
    for (std::int64_t k = 0; k < count; ++k) {
      for (std::int64_t d = from; d < width; ++d) {
        results[q][d] += weights[q * stride + k] * values[k * width + d];
      }
    }
  }
}

TVM_SCHED_VERSIONS void MixOf(const float* weights, std::int64_t stride, const float* values,
                              std::int64_t width, std::int64_t count, float* const* results,
                              int queries) {
  int q = 0;
  for (; q + 4 <= queries; q += 4) {
    MixAll<4>(weights + q * stride, stride, values, width, count, results + q);
  }
  for (; q + 2 <= queries; q += 2) {
    MixAll<2>(weights + q * stride, stride, values, width, count, results + q);
  }
  if (q < queries) MixAll<1>(weights + q * stride, stride, values, width, count, results + q);
}

/// Normalise a head's vector by its root mean square.
TVM_SCHED_VERSIONS void NormalizeHead(float* values, const float* weight, std::int64_t width,
                                      double epsilon) {
  constexpr int kLanes = 8;
  using Doubles = onednn::VectorOf<double, kLanes>::Type;
  Doubles sums = {};
  std::int64_t d = 0;
  for (onednn::VectorOf<float, kLanes>::Type x; d + kLanes <= width; d += kLanes) {
    std::memcpy(&x, values + d, sizeof x);
    const Doubles wide = __builtin_convertvector(x, Doubles);
    sums += wide * wide;
  }
  double squares = 0;
  for (int lane = 0; lane < kLanes; ++lane) squares += sums[lane];
  for (; d < width; ++d) squares += static_cast<double>(values[d]) * static_cast<double>(values[d]);
  const auto factor =
      static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width) + epsilon));
  for (std::int64_t k = 0; k < width; ++k) values[k] = values[k] * factor * weight[k];
}

/// Rotate the pairs (d, d + half) by the angles of a position; `angles` has cosines, then sines.
TVM_SCHED_VERSIONS void Rotate(float* values, const float* angles, std::int64_t half) {
#pragma GCC ivdep
  for (std::int64_t d = 0; d < half; ++d) {
    const float a = values[d], b = values[d + half], cosine = angles[d], sine = angles[half + d];
    values[d] = a * cosine - b * sine;
    values[d + half] = b * cosine + a * sine;
  }
}

}  // namespace

// Inputs: queries, keys and values of the rows beside each other; positions; sequences; perhaps the
// table of angles; perhaps weights of the norms of queries and keys; then the states of keys and of
// values. Results: queries, and the states.
Kernel MakeStore(const JsonCursor& about) {
  about.AllowFields(
      {"kind", "heads", "key_heads", "width", "capacity", "window", "rotated", "norms", "epsilon"});
  const Heads heads = ReadHeads(about);
  const std::int64_t rotated = about.Field("rotated").Int(0, heads.width);
  const bool window = about.Field("window").Int(0, 1 << 30) > 0;
  const bool norms = about.Field("norms").Bool();
  const double epsilon = about.Field("epsilon").Number();
  return [=](const Tensors& tensors) {
    const std::int64_t rows = tensors[0]->shape[0];
    const std::int64_t width = heads.width, all = (heads.queries + 2 * heads.keys) * width;
    std::size_t next = 3;
    const DLTensor* angles = rotated > 0 ? tensors[next++] : nullptr;
    const float* query_norm = norms ? DataOf<const float>(tensors[next++]) : nullptr;
    const float* key_norm = norms ? DataOf<const float>(tensors[next++]) : nullptr;
    float* keys = DataOf(tensors[next]);
    float* values = DataOf(tensors[next + 1]);
    const std::int64_t sequences = tensors[next]->shape[0];
    const auto store = [&](int r) {
      const float* source = DataOf<const float>(tensors[0]) + r * all;
      float* queries = DataOf(tensors[next + 2]) + r * heads.queries * width;
      const std::int64_t position = DataOf<const std::int32_t>(tensors[1])[r];
      const std::int64_t sequence = DataOf<const std::int32_t>(tensors[2])[r];
      const bool outside = position < 0 || sequence < 0 || sequence >= sequences ||
                           (!window && position >= heads.capacity) ||
                           (angles != nullptr && position >= angles->shape[0]);
      std::copy_n(source, heads.queries * width, queries);
      if (outside) return;
      const float* angle =
          angles == nullptr ? nullptr : DataOf<const float>(angles) + position * rotated;
      const auto prepare = [&](float* head, const float* norm) {
        if (norm != nullptr) NormalizeHead(head, norm, width, epsilon);
        if (angle != nullptr) Rotate(head, angle, rotated / 2);
      };
      for (std::int64_t h = 0; h < heads.queries; ++h) prepare(queries + h * width, query_norm);
      std::vector<float> head(width);
      const std::int64_t place = position % heads.capacity;
      for (std::int64_t h = 0; h < heads.keys; ++h) {
        std::copy_n(source + (heads.queries + h) * width, width, head.data());
        prepare(head.data(), key_norm);
        const std::int64_t base = heads.Base(sequence, h);
        float* tile = keys + base + place / kTile * kTile * width + place % kTile;
        for (std::int64_t d = 0; d < width; ++d) tile[d * kTile] = head[d];
        std::copy_n(source + (heads.queries + heads.keys + h) * width, width,
                    values + base + place * width);
      }
    };
    if (rows < 8) {
      for (int r = 0; r < rows; ++r) store(r);
    } else {
      Loop(static_cast<int>(rows), store);
    }
  };
}

// Inputs: queries, states of keys and of values, positions, sequences. The result has the shape of
// the queries.
Kernel MakeAttention(const JsonCursor& about) {
  about.AllowFields({"kind", "heads", "key_heads", "width", "capacity", "window", "scale", "cap"});
  const Heads heads = ReadHeads(about);
  const std::int64_t window = about.Field("window").Int(0, 1 << 30);
  const auto scale = static_cast<float>(about.Field("scale").Number());
  const auto cap = static_cast<float>(about.Field("cap").Number());
  return [=](const Tensors& tensors) {
    const std::int64_t rows = tensors[0]->shape[0], width = heads.width;
    const std::int64_t group = heads.queries / heads.keys, all = heads.queries * width;
    const auto* positions = DataOf<const std::int32_t>(tensors[3]);
    const auto* sequences = DataOf<const std::int32_t>(tensors[4]);
    const std::int64_t known = tensors[1]->shape[0];
    float* result = DataOf(tensors[5]);
    std::fill_n(result, rows * all, 0.0f);
    struct Block {
      std::int64_t first, count;  // rows of one sequence
    };
    std::vector<Block> blocks;
    const std::int64_t most = std::max<std::int64_t>(1, kMostQueries / group);
    for (std::int64_t r = 0; r < rows; ++r) {
      const bool outside = positions[r] < 0 || sequences[r] < 0 || sequences[r] >= known ||
                           (window == 0 && positions[r] >= heads.capacity);
      if (outside) continue;
      if (!blocks.empty() && blocks.back().first + blocks.back().count == r &&
          blocks.back().count < most && sequences[blocks.back().first] == sequences[r]) {
        ++blocks.back().count;
      } else {
        blocks.push_back({r, 1});
      }
    }
    const auto attend = [&](int task) {
      const Block& block = blocks[task / heads.keys];
      const std::int64_t head = task % heads.keys, count = block.count * group;
      const std::int64_t base = heads.Base(sequences[block.first], head);
      const float* keys = DataOf<const float>(tensors[1]) + base;
      const float* values = DataOf<const float>(tensors[2]) + base;
      std::vector<const float*> queries;
      std::vector<float*> results;
      std::vector<std::int64_t> places;
      for (std::int64_t r = block.first; r < block.first + block.count; ++r) {
        for (std::int64_t g = 0; g < group; ++g) {
          const std::int64_t offset = r * all + (head * group + g) * width;
          queries.push_back(DataOf<const float>(tensors[0]) + offset);
          results.push_back(result + offset);
          places.push_back(positions[r]);
        }
      }
      const auto [least, greatest] = std::minmax_element(places.begin(), places.end());
      const std::int64_t end = *greatest + 1;
      const std::int64_t begin =
          window == 0 ? 0 : std::max<std::int64_t>(0, *least - window + 1) / kTile * kTile;
      const std::int64_t stride = (end - begin + kTile - 1) / kTile * kTile;
      std::vector<float> scores(count * stride);
      for (std::int64_t p = begin; p < end; p += kTile) {
        ScoresOf(queries.data(), static_cast<int>(count), keys + p % heads.capacity * width, width,
                 scale, scores.data() + (p - begin), stride);
      }
      for (std::int64_t q = 0; q < count; ++q) {
        float* row = scores.data() + q * stride;
        if (cap != 0) {
          for (std::int64_t k = 0; k < stride; ++k) row[k] = cap * std::tanh(row[k] / cap);
        }
        const std::int64_t first =
            window == 0 ? 0 : std::max<std::int64_t>(begin, places[q] - window + 1);
        std::fill(row, row + std::max<std::int64_t>(0, first - begin), kNothing);
        std::fill(row + places[q] + 1 - begin, row + stride, kNothing);
        Softmax(row, stride);
      }
      // Values of one run of places at a time: a window may go around the end of the memory.
      for (std::int64_t p = begin; p < end;) {
        const std::int64_t place = p % heads.capacity;
        const std::int64_t some = std::min(end - p, heads.capacity - place);
        MixOf(scores.data() + (p - begin), stride, values + place * width, width, some,
              results.data(), static_cast<int>(count));
        p += some;
      }
    };
    const auto tasks = static_cast<int>(blocks.size() * heads.keys);
    if (tasks == 1 || rows * static_cast<std::int64_t>(tasks) < 2) {
      for (int k = 0; k < tasks; ++k) attend(k);
    } else {
      Loop(tasks, attend);
    }
  };
}

}  // namespace tvm_sched::language
