// Kernels of decoder-only language models: what `cpp/kernels/language` computes on CPUs, with the same packed weights, keys
// and values. Rows are tokens; each has a position and belongs to a sequence, whose number says where its keys and values
// lie. A row with a negative position is padding and changes nothing.
#pragma once

#include "rows.cuh"
#include "tensor_cores.cuh"

namespace tvm_sched::language {

constexpr int kTile = 16;  // outputs of a tile of weights, positions of a tile of keys
constexpr int kGroup = 32;  // terms that share a scale
constexpr int kProductWarps = 8, kAttentionWarps = 8;

__device__ inline float Wide(unsigned bits) { return __uint_as_float(bits << 16); }

// ---- formats of weights: a word of 32 bits holds some terms of one column, 16 columns lie side by side

struct Float32 {
  static constexpr int kTerms = 1, kPadding = 1;
  __device__ static int Term(int word, int) { return word; }
  __device__ static void Widen(unsigned bits, float, float, float* values) { values[0] = __uint_as_float(bits); }
};
struct Bfloat16 {
  static constexpr int kTerms = 2, kPadding = kGroup;
  __device__ static int Term(int word, int k) { return 2 * word + k; }
  __device__ static void Widen(unsigned bits, float, float, float* values) {
    values[0] = Wide(bits & 0xffffu);
    values[1] = Wide(bits >> 16);
  }
};
struct Int8 {
  static constexpr int kTerms = 4, kPadding = kGroup;
  __device__ static int Term(int word, int k) { return 4 * word + k; }
  __device__ static void Widen(unsigned bits, float scale, float, float* values) {
    for (int k = 0; k < 4; ++k) values[k] = float((signed char)(bits >> 8 * k)) * scale;
  }
};
struct Int4 {
  static constexpr int kTerms = 8, kPadding = kGroup;
  /// Fours 0 to 3 of a group are in the lower bits, 4 to 7 in the upper ones.
  __device__ static int Term(int word, int k) { return word / 4 * kGroup + word % 4 * 4 + k % 4 + k / 4 * kGroup / 2; }
  __device__ static void Widen(unsigned bits, float scale, float zero, float* values) {
    for (int k = 0; k < 4; ++k) {
      values[k] = (float(bits >> 8 * k & 0xfu) - zero) * scale;
      values[4 + k] = (float(bits >> (8 * k + 4) & 0xfu) - zero) * scale;
    }
  }
};

/// Packed weights; without scales or zeros these are null.
struct Weights {
  const unsigned* tiles;
  const unsigned short* scales;
  const unsigned char* zeros;
};

/// Words of a column of a matrix with `terms` terms.
template <class Format>
__device__ constexpr int Words(int terms) {
  return (terms + Format::kPadding - 1) / Format::kPadding * Format::kPadding / Format::kTerms;
}

/// The terms of one word; `tile` counts over all matrices that lie one after the other.
template <class Format, int kTerms>
__device__ void TermsOf(const Weights& weights, long long tile, int word, int column, float* values) {
  constexpr int kWords = Words<Format>(kTerms), kGroups = (kTerms + kGroup - 1) / kGroup;
  const unsigned bits = weights.tiles[(tile * kWords + word) * kTile + column];
  float scale = 1.0f, zero = 8.0f;
  if (weights.scales != nullptr) {
    const long long group = (tile * kGroups + word * Format::kTerms / kGroup) * kTile + column;
    scale = Wide(weights.scales[group]);
    if (weights.zeros != nullptr) zero = float(weights.zeros[group]);
  }
  Format::Widen(bits, scale, zero, values);
}

/// The terms of the words of four columns, the first of which is a multiple of four.
template <class Format, int kTerms>
__device__ void TermsOfFour(const Weights& weights, long long tile, int word, int column, float (*values)[Format::kTerms]) {
  constexpr int kWords = Words<Format>(kTerms), kGroups = (kTerms + kGroup - 1) / kGroup;
  const uint4 bits = *reinterpret_cast<const uint4*>(weights.tiles + (tile * kWords + word) * kTile + column);
  ushort4 scales = {0x3f80, 0x3f80, 0x3f80, 0x3f80};  // 1
  uchar4 zeros = {8, 8, 8, 8};
  if (weights.scales != nullptr) {
    const long long group = (tile * kGroups + word * Format::kTerms / kGroup) * kTile + column;
    scales = *reinterpret_cast<const ushort4*>(weights.scales + group);
    if (weights.zeros != nullptr) zeros = *reinterpret_cast<const uchar4*>(weights.zeros + group);
  }
  Format::Widen(bits.x, Wide(scales.x), float(zeros.x), values[0]);
  Format::Widen(bits.y, Wide(scales.y), float(zeros.y), values[1]);
  Format::Widen(bits.z, Wide(scales.z), float(zeros.z), values[2]);
  Format::Widen(bits.w, Wide(scales.w), float(zeros.w), values[3]);
}

/// What a product does with a sum: activation(sum + bias), capped, + residual.
enum Activation { kNone, kSilu, kGelu, kGeluTanh, kRelu };

__device__ inline float Sigmoid(float x) {
  const float power = expf(-fabsf(x));
  return (x < 0 ? power : 1.0f) / (1.0f + power);
}

template <Activation kActivation>
__device__ float Activate(float x) {
  if constexpr (kActivation == kSilu) return x * Sigmoid(x);
  if constexpr (kActivation == kGelu) return 0.5f * x * (1.0f + erff(0.70710678118654752f * x));
  if constexpr (kActivation == kGeluTanh) return x * Sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
  if constexpr (kActivation == kRelu) return x < 0 ? 0.0f : x;
  return x;
}

/// Sums of some rows and a tile, in the first 16 threads of a block of `kProductWarps` warps, a column each. A thread reads
/// 16 bytes, a word of four neighbouring columns, so that enough bytes are on their way; a warp reads eight such words.
template <class Format, int kTerms, int kRows>
__device__ void SumsOfTile(const Weights& weights, long long tile, const float* const* rows, int count, float* sums) {
  constexpr int kFour = 4, kAtOnce = 32 / (kTile / kFour);
  __shared__ float of_warps[kProductWarps][kRows][kTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = lane % (kTile / kFour) * kFour;
  float mine[kRows][kFour] = {};
#pragma unroll 4
  for (int word = kAtOnce * warp + lane / kFour; word < Words<Format>(kTerms); word += kAtOnce * kProductWarps) {
    float values[kFour][Format::kTerms];
    TermsOfFour<Format, kTerms>(weights, tile, word, column, values);
    for (int k = 0; k < Format::kTerms; ++k) {
      const int term = Format::Term(word, k);
      if (kTerms % Format::kPadding != 0 && term >= kTerms) continue;
      for (int r = 0; r < kRows; ++r) {
        if (r >= count) continue;
        const float factor = rows[r][term];
        for (int c = 0; c < kFour; ++c) mine[r][c] += values[c][k] * factor;
      }
    }
  }
  __syncthreads();  // what was there is read
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kFour; ++c) {
      for (int other = kFour; other < 32; other *= 2) mine[r][c] += __shfl_xor_sync(0xffffffffu, mine[r][c], other);
      if (lane < kFour) of_warps[warp][r][column + c] = mine[r][c];
    }
  }
  __syncthreads();
  if (threadIdx.x >= kTile) return;
  for (int r = 0; r < kRows; ++r) {
    sums[r] = 0.0f;
    for (int w = 0; w < kProductWarps; ++w) sums[r] += of_warps[w][r][threadIdx.x];
  }
}

/// What a product writes of a sum. `Shape` has: columns, activation, cap.
template <class Shape>
__device__ void Finish(float sum, int row, int column, const float* bias, const float* residual, float* out) {
  float value = Activate<Shape::activation>(sum + (bias == nullptr ? 0.0f : bias[column]));
  if constexpr (Shape::cap != 0.0f) value = Shape::cap * tanhf(value / Shape::cap);
  const long long place = (long long)row * Shape::columns + column;
  out[place] = value + (residual == nullptr ? 0.0f : residual[place]);
}

/// `Shape` has: Format, terms, columns, rows (of the tensor), at_once, activation, cap.
template <class Shape>
__device__ void linear(const float* in, const Weights& weights, const float* bias, const float* residual, float* out) {
  const float* rows[Shape::at_once];
  const int first = blockIdx.x * Shape::at_once;
  const int count = min(Shape::at_once, Shape::rows - first);
  for (int r = 0; r < Shape::at_once; ++r) rows[r] = in + (long long)(first + min(r, count - 1)) * Shape::terms;
  float sums[Shape::at_once];
  SumsOfTile<typename Shape::Format, Shape::terms, Shape::at_once>(weights, blockIdx.y, rows, count, sums);
  const int column = blockIdx.y * kTile + threadIdx.x;
  if (threadIdx.x >= kTile || column >= Shape::columns) return;
  for (int r = 0; r < count; ++r) Finish<Shape>(sums[r], first + r, column, bias, residual, out);
}

// ---- products of several rows on tensor cores

/// Numbers of a format, without their scale, as pairs of bfloat16, which hold them exactly: B's registers of a column, for two
/// products of 16 terms, from the words of a group. Terms keep the order of the words: `First` says which pair of terms a
/// register of A holds.
template <class Format>
struct Operand {  // of integers
  static constexpr bool kScaled = true;
  __device__ static int First(int product, int half, int quarter) { return 16 * product + 4 * quarter + 2 * half; }
  __device__ static void Read(const unsigned* words, int quarter, float zero, unsigned (*pairs)[2]) {
    constexpr int kWords = 8 / Format::kTerms;
    float values[8];
    for (int m = 0; m < kWords; ++m) {
      Format::Widen(words[(4 * m + quarter) * kTile], 1.0f, zero, values + m * Format::kTerms);
    }
    for (int m = 0; m < 4; ++m) pairs[m / 2][m % 2] = Pack<__nv_bfloat16>(values[2 * m], values[2 * m + 1]);
  }
};
template <>
struct Operand<Bfloat16> {
  static constexpr bool kScaled = false;
  __device__ static int First(int product, int half, int quarter) { return 16 * product + 8 * half + 2 * quarter; }
  __device__ static void Read(const unsigned* words, int quarter, float, unsigned (*pairs)[2]) {
    for (int m = 0; m < 4; ++m) pairs[m / 2][m % 2] = words[(4 * m + quarter) * kTile];
  }
};

/// `linear` of several rows: each weight is read once for `at_once` rows, 16 for a warp, and the other warps share the terms.
/// A number of a row is the sum of two of bfloat16, which is right to 2^-17. `Shape` has besides: tiles (of a block).
template <class Shape>
__device__ void linear_of_rows(const float* in, const Weights& weights, const float* bias, const float* residual,
                               float* out) {
  using Format = typename Shape::Format;
  using Of = Operand<Format>;
  constexpr int kStrip = 16, kStrips = Shape::at_once / kStrip, kSlices = kProductWarps / kStrips;
  constexpr int kGroups = (Shape::terms + kGroup - 1) / kGroup, kAll = (Shape::columns + kTile - 1) / kTile;
  constexpr int kWidth = kTile * Shape::tiles;
  __shared__ float of_warps[kProductWarps][kStrip][kWidth];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = lane % 4, group_of_lane = lane / 4;
  const int first = blockIdx.x * Shape::at_once, tile = blockIdx.y * Shape::tiles;
  float sums[2 * Shape::tiles][4] = {};
  for (int group = warp / kStrips; group < kGroups; group += kSlices) {
    unsigned high[2][4], low[2][4];
    for (int i = 0; i < 8; ++i) {
      const int row = min(first + warp % kStrips * kStrip + group_of_lane + i % 2 * 8, Shape::rows - 1);
      const int term = group * kGroup + Of::First(i / 4, i / 2 % 2, quarter);
      const float* from = in + (long long)row * Shape::terms + term;
      const float a = term < Shape::terms ? from[0] : 0.0f, b = term + 1 < Shape::terms ? from[1] : 0.0f;
      const unsigned both = Pack<__nv_bfloat16>(a, b);
      high[i / 4][i % 4] = both;
      low[i / 4][i % 4] = Pack<__nv_bfloat16>(a - Wide(both & 0xffffu), b - Wide(both >> 16));
    }
    for (int t = 0; t < 2 * Shape::tiles; ++t) {
      const int at = tile + t / 2, column = t % 2 * 8;
      if (at >= kAll) break;
      const long long word = (long long)at * Words<Format>(Shape::terms) + group * (kGroup / Format::kTerms);
      const long long scale = ((long long)at * kGroups + group) * kTile + column;
      float zero = 8.0f;
      if (weights.zeros != nullptr) zero = float(weights.zeros[scale + group_of_lane]);
      unsigned pairs[2][2];
      Of::Read(weights.tiles + word * kTile + column + group_of_lane, quarter, zero, pairs);
      float part[4] = {};
      for (int m = 0; m < 2; ++m) {
        MultiplyAdd<__nv_bfloat16>(part, high[m], pairs[m]);
        MultiplyAdd<__nv_bfloat16>(part, low[m], pairs[m]);
      }
      for (int i = 0; i < 4; ++i) {
        sums[t][i] += part[i] * (Of::kScaled ? Wide(weights.scales[scale + 2 * quarter + i % 2]) : 1.0f);
      }
    }
  }
  for (int t = 0; t < 2 * Shape::tiles; ++t) {
    for (int i = 0; i < 4; ++i) of_warps[warp][group_of_lane + i / 2 * 8][8 * t + 2 * quarter + i % 2] = sums[t][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < Shape::at_once * kWidth; i += blockDim.x) {
    const int row = i / kWidth, column = tile * kTile + i % kWidth;
    if (first + row >= Shape::rows || column >= Shape::columns) continue;
    float sum = 0.0f;
    for (int k = 0; k < kSlices; ++k) sum += of_warps[k * kStrips + row / kStrip][row % kStrip][i % kWidth];
    Finish<Shape>(sum, first + row, column, bias, residual, out);
  }
}

// ---- mixtures of experts

/// The experts of a row, a block each: their numbers, and how much they count. Of equal ones the first counts.
template <int kExperts, int kChosen, bool kNormalize>
__device__ void choose_experts(const float* scores, int* chosen, float* shares) {
  if (threadIdx.x != 0) return;
  const float* row = scores + (long long)blockIdx.x * kExperts;
  float largest = row[0], sum = 0.0f, kept = 0.0f;
  for (int e = 1; e < kExperts; ++e) largest = fmaxf(largest, row[e]);
  for (int e = 0; e < kExperts; ++e) sum += expf(row[e] - largest);
  chosen += blockIdx.x * kChosen;
  shares += blockIdx.x * kChosen;
  for (int k = 0; k < kChosen; ++k) {
    int best = -1;
    for (int e = 0; e < kExperts; ++e) {
      bool taken = false;
      for (int before = 0; before < k; ++before) taken = taken || chosen[before] == e;
      if (!taken && (best < 0 || row[e] > row[best])) best = e;
    }
    chosen[k] = best;
    kept += shares[k] = expf(row[best] - largest) / sum;
  }
  for (int k = 0; kNormalize && k < kChosen; ++k) shares[k] /= kept;
}

/// Gate and up of a row by one of its experts: a block for a tile, a row and a choice. `Shape` has: Format, hidden, inner,
/// chosen, activation.
template <class Shape>
__device__ void open_experts(const float* in, const Weights& weights, const int* chosen, float* opened) {
  constexpr int kTiles = (2 * Shape::inner + kTile - 1) / kTile;
  const float* row = in + (long long)(blockIdx.x / Shape::chosen) * Shape::hidden;
  float sum[1];
  const long long tile = (long long)chosen[blockIdx.x] * kTiles + blockIdx.y;
  SumsOfTile<typename Shape::Format, Shape::hidden, 1>(weights, tile, &row, 1, sum);
  const int column = blockIdx.y * kTile + threadIdx.x;
  if (threadIdx.x < kTile && column < 2 * Shape::inner) opened[(long long)blockIdx.x * 2 * Shape::inner + column] = sum[0];
}

/// A row's experts, added with their shares to a residual.
template <class Shape>
__device__ void close_experts(const float* gated, const Weights& weights, const int* chosen, const float* shares,
                              const float* residual, float* out) {
  constexpr int kTiles = (Shape::hidden + kTile - 1) / kTile;
  float sum[1], all = 0.0f;
  for (int k = 0; k < Shape::chosen; ++k) {
    const int choice = blockIdx.x * Shape::chosen + k;
    const float* row = gated + (long long)choice * Shape::inner;
    const long long tile = (long long)chosen[choice] * kTiles + blockIdx.y;
    SumsOfTile<typename Shape::Format, Shape::inner, 1>(weights, tile, &row, 1, sum);
    all += shares[choice] * sum[0];
  }
  const int column = blockIdx.y * kTile + threadIdx.x;
  const long long place = (long long)blockIdx.x * Shape::hidden + column;
  if (threadIdx.x < kTile && column < Shape::hidden) out[place] = residual[place] + all;
}

// ---- the next token

constexpr int kChoosers = 1024;

/// Sums over the block in a fixed order, in all threads.
template <int kCount>
__device__ void SumsOfBlock(const float* mine, double* sums) {
  __shared__ float of_warps[kChoosers / 32][kCount];
  __syncthreads();  // what was there is read
  for (int k = 0; k < kCount; ++k) {
    float sum = mine[k];
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][k] = sum;
  }
  __syncthreads();
  for (int k = 0; k < kCount; ++k) {
    sums[k] = 0.0;
    for (int w = 0; w < kChoosers / 32; ++w) sums[k] += of_warps[w][k];
  }
}

/// Tokens of a row from the most likely on, equal ones by their numbers, up to the last one that counts.
template <int kVocab>
struct Ranking {
  const float* logits;
  float largest, temperature;
  unsigned last_key = 0;
  int last = kVocab - 1;

  /// A number with the order of logits.
  __device__ static unsigned Key(float logit) {
    const unsigned bits = __float_as_uint(logit);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  }
  __device__ bool Counts(unsigned key, int token) const {
    return key > last_key || (key == last_key && token <= last);
  }
  template <bool kCounting>
  __device__ float Measure(float logit) const {
    return kCounting ? 1.0f : expf((logit - largest) / temperature);
  }
  __device__ double Total() const {
    float mine = 0.0f;
    for (int i = threadIdx.x; i < kVocab; i += kChoosers) {
      if (Counts(Key(logits[i]), i)) mine += Measure<false>(logits[i]);
    }
    double all;
    SumsOfBlock<1>(&mine, &all);
    return all;
  }

  /// The first token with which the count or the weight of the tokens up to it reaches `target`, or with `beyond` exceeds
  /// it, becomes the last one that counts. Its key is found from its highest four bits on.
  template <bool kCounting>
  __device__ void CutAt(double target, bool beyond) {
    unsigned key = 0;
    double before = 0.0;
    const auto reached = [&](double sum) { return beyond ? sum > target : sum >= target; };
    for (int shift = 28; shift >= 0; shift -= 4) {
      float mine[16] = {};
      for (int i = threadIdx.x; i < kVocab; i += kChoosers) {
        const unsigned other = Key(logits[i]);
        if (!Counts(other, i) || (shift < 28 && other >> (shift + 4) != key)) continue;
        const float measure = Measure<kCounting>(logits[i]);
        for (unsigned d = 0; d < 16; ++d) mine[d] += (other >> shift & 15u) == d ? measure : 0.0f;
      }
      double sums[16];
      SumsOfBlock<16>(mine, sums);
      int found = -1;  // after rounding, the last digit that has weight
      for (int d = 15; d >= 0; --d) {
        if (sums[d] <= 0.0) continue;
        if (found >= 0) before += sums[found];
        found = d;
        if (reached(before + sums[d])) break;
      }
      key = key << 4 | unsigned(max(found, 0));
    }
    // Of equal tokens, each thread has some that lie side by side.
    constexpr int kOwn = (kVocab + kChoosers - 1) / kChoosers;
    __shared__ int counts[kChoosers], answer;
    const int first = threadIdx.x * kOwn, end = min(first + kOwn, kVocab);
    int count = 0, all = 0, earlier = 0;
    float measure = 1.0f;
    for (int i = first; i < end; ++i) count += Key(logits[i]) == key && Counts(key, i);
    counts[threadIdx.x] = count;
    if (threadIdx.x == 0) answer = last;
    __syncthreads();
    if (count > 0) {
      for (int t = 0; t < kChoosers; ++t) {
        all += counts[t];
        earlier += t < int(threadIdx.x) ? counts[t] : 0;
      }
      for (int i = first; i < end; ++i) {
        if (Key(logits[i]) == key) measure = Measure<kCounting>(logits[i]);
      }
      const double steps = (target - before) / measure;
      const double wanted = beyond ? floor(steps) + 1.0 : ceil(steps);
      const int place = int(fmin(fmax(wanted, 1.0), double(all)));
      for (int i = first, here = earlier; i < end && earlier < place; ++i) {
        if (Key(logits[i]) == key && Counts(key, i) && ++here == place) answer = i;
      }
    }
    __syncthreads();
    last_key = key;
    last = answer;
    __syncthreads();  // before it is written again
  }
};

/// The next token of a row, a block each: `choices` has its temperature, top_k, top_p and a random number below 1. What
/// `Sampling.choose` draws with that number; probabilities are right to about 1e-6. Where the largest logit is no finite
/// number, -1.
template <int kVocab>
__device__ void choose_tokens(const float* logits, const double* choices, int* tokens) {
  __shared__ float of_warps[kChoosers / 32];
  __shared__ int numbers[kChoosers / 32];
  logits += (long long)blockIdx.x * kVocab;
  choices += 4 * blockIdx.x;
  float largest = -INFINITY;
  int best = kVocab;
  const auto join = [&](float other, int number) {
    if (largest != largest || other < largest || (other == largest && number >= best)) return;  // NaN stays
    largest = other;
    best = number;
  };
  for (int i = threadIdx.x; i < kVocab; i += kChoosers) join(logits[i], i);
  for (int other = 16; other > 0; other /= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, largest, other);
    join(value, __shfl_xor_sync(0xffffffffu, best, other));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  if (threadIdx.x % 32 == 0) numbers[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < kChoosers / 32; ++w) join(of_warps[w], numbers[w]);
  const bool finite = fabsf(largest) < INFINITY;
  if (finite && choices[0] > 0.0) {
    Ranking<kVocab> ranking{logits, largest, fmaxf(float(choices[0]), 1e-30f)};
    if (choices[1] >= 1.0 && choices[1] < kVocab) ranking.template CutAt<true>(choices[1], false);
    if (choices[2] < 1.0) ranking.template CutAt<false>(choices[2] * ranking.Total(), false);
    ranking.template CutAt<false>(choices[3] * ranking.Total(), true);
    best = ranking.last;
  }
  if (threadIdx.x == 0) tokens[blockIdx.x] = finite ? min(best, kVocab - 1) : -1;
}

// ---- rows

/// `Shape` has: Format, hidden, vocab, positions (of the table), offset, scale.
template <class Shape>
__device__ void embed(const int* tokens, const Weights& table, const int* places, const float* learned, float* out) {
  // A number out of range touches no foreign memory.
  const int token = max(0, min(tokens[blockIdx.x], Shape::vocab - 1));
  float* to = out + (long long)blockIdx.x * Shape::hidden;
  for (int word = threadIdx.x; word < Words<typename Shape::Format>(Shape::hidden); word += blockDim.x) {
    float values[Shape::Format::kTerms];
    TermsOf<typename Shape::Format, Shape::hidden>(table, token / kTile, word, token % kTile, values);
    for (int k = 0; k < Shape::Format::kTerms; ++k) {
      const int h = Shape::Format::Term(word, k);
      if (h >= Shape::hidden) continue;
      to[h] = values[k] * Shape::scale;
      if (learned == nullptr) continue;
      const int place = max(0, min(places[blockIdx.x] + Shape::offset, Shape::positions - 1));
      to[h] += learned[(long long)place * Shape::hidden + h];
    }
  }
}

template <int kWidth, int kRows>
__device__ void take_rows(const float* in, const int* which, float* out) {
  const int row = max(0, min(which[blockIdx.x], kRows - 1));
  for (int i = threadIdx.x; i < kWidth; i += blockDim.x) {
    out[(long long)blockIdx.x * kWidth + i] = in[(long long)row * kWidth + i];
  }
}

/// The sum of tensors of `kCount` numbers, from the first to the last.
template <int kCount, class... Others>
__device__ void add(float* out, const float* first, const Others*... others) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) out[i] = (first[i] + ... + others[i]);
}

/// Write rows of `kWidth` numbers from column `kFirst` of rows of `kAll` numbers on.
template <int kWidth, int kFirst, int kAll>
__device__ void put_columns(const float* in, float* out) {
  for (int i = threadIdx.x; i < kWidth; i += blockDim.x) {
    out[(long long)blockIdx.x * kAll + kFirst + i] = in[(long long)blockIdx.x * kWidth + i];
  }
}

template <int kWidth, bool kCentred, bool kBiased>
__device__ void normalise_and_add(const float* in, const float* weight, const float* bias, const float* residual,
                                  float* out, float epsilon) {
  normalise<float, float, float, kWidth, kCentred, true, kBiased>(in, weight, bias, out, epsilon);
  if (residual == nullptr) return;
  const long long first = (long long)blockIdx.x * kWidth;
  for (int i = threadIdx.x; i < kWidth; i += kRowThreads) out[first + i] += residual[first + i];
}

/// Gate and up beside each other.
template <int kWidth, Activation kActivation>
__device__ void gate(const float* in, float* out) {
  const float* row = in + (long long)blockIdx.x * 2 * kWidth;
  for (int i = threadIdx.x; i < kWidth; i += blockDim.x) {
    out[(long long)blockIdx.x * kWidth + i] = Activate<kActivation>(row[i]) * row[kWidth + i];
  }
}

template <int kWidth>
__device__ void add_with_gate(const float* in, const float* gates, const float* residual, float* out) {
  const float factor = Sigmoid(gates[blockIdx.x]);
  const long long first = (long long)blockIdx.x * kWidth;
  for (int i = threadIdx.x; i < kWidth; i += blockDim.x) out[first + i] = residual[first + i] + factor * in[first + i];
}

// ---- keys and values

/// `Shape` has: heads, key_heads, width, capacity, window, sequences.
template <class Shape>
__device__ bool Outside(int position, int sequence) {
  return position < 0 || sequence < 0 || sequence >= Shape::sequences ||
         (Shape::window == 0 && position >= Shape::capacity);
}

/// Where a sequence's keys or values of a head begin.
template <class Shape>
__device__ long long Base(int sequence, int head) {
  return ((long long)sequence * Shape::key_heads + head) * Shape::capacity * Shape::width;
}

/// A warp for each head of queries, keys and values of a row. `Shape` has besides: rotated, angles (of the table), epsilon,
/// normalised.
template <class Shape>
__device__ void store(const float* in, const int* positions, const int* sequences, const float* angles,
                      const float* query_norm, const float* key_norm, float* queries, float* keys, float* values) {
  constexpr int kAll = Shape::heads + 2 * Shape::key_heads;
  __shared__ float head[Shape::width];
  const int row = blockIdx.x, lane = threadIdx.x, position = positions[row], sequence = sequences[row];
  const int number = blockIdx.y, key = number - Shape::heads, value = key - Shape::key_heads;
  const bool outside = Outside<Shape>(position, sequence) || (Shape::rotated > 0 && position >= Shape::angles);
  const float* source = in + ((long long)row * kAll + number) * Shape::width;
  if (outside && key >= 0) return;
  for (int d = lane; d < Shape::width; d += 32) head[d] = source[d];
  __syncwarp();
  if (!outside && value < 0) {
    if constexpr (Shape::normalised) {
      float squares = 0.0f;
      for (int d = lane; d < Shape::width; d += 32) squares += head[d] * head[d];
      for (int other = 16; other > 0; other /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, other);
      const float factor = 1.0f / sqrtf(squares / Shape::width + Shape::epsilon);
      for (int d = lane; d < Shape::width; d += 32) head[d] *= factor * (key < 0 ? query_norm : key_norm)[d];
      __syncwarp();
    }
    // Pairs (d, d + half) turn by the angles of a position; the table has cosines, then sines.
    constexpr int kHalf = Shape::rotated / 2;
    for (int d = lane; d < kHalf; d += 32) {
      const float a = head[d], b = head[d + kHalf];
      const float cosine = angles[(long long)position * Shape::rotated + d];
      const float sine = angles[(long long)position * Shape::rotated + kHalf + d];
      head[d] = a * cosine - b * sine;
      head[d + kHalf] = b * cosine + a * sine;
    }
    __syncwarp();
  }
  const int place = position % Shape::capacity;
  if (key < 0) {
    float* to = queries + ((long long)row * Shape::heads + number) * Shape::width;
    for (int d = lane; d < Shape::width; d += 32) to[d] = head[d];
  } else if (value < 0) {
    float* to = keys + Base<Shape>(sequence, key) + place / kTile * kTile * Shape::width + place % kTile;
    for (int d = lane; d < Shape::width; d += 32) to[d * kTile] = head[d];
  } else {
    float* to = values + Base<Shape>(sequence, value) + (long long)place * Shape::width;
    for (int d = lane; d < Shape::width; d += 32) to[d] = head[d];
  }
}

/// Softmax over some positions: the largest score, the sum of powers, and values weighted by these.
template <int kWidth>
struct Partial {
  static constexpr int kOfLane = (kWidth + 31) / 32;
  float largest = -INFINITY, sum = 0.0f, mixed[kOfLane] = {};

  /// Make room for scores up to `other`; the factor of what is there.
  __device__ float Raise(float other) {
    if (other <= largest) return 1.0f;
    const float factor = expf(largest - other);
    largest = other;
    sum *= factor;
    for (int j = 0; j < kOfLane; ++j) mixed[j] *= factor;
    return factor;
  }
};

/// Attention of a row's head over the positions that its sequence has, by a block of `kAttentionWarps` warps. Each warp goes
/// through tiles of 16 positions with its own running maximum (Dao, FlashAttention-2, 2023); where a sequence may be long,
/// several blocks share them (gridDim.z), and `join_parts` joins what each left in `parts`. `Shape` has besides: scale,
/// cap.
template <class Shape>
__device__ void attend(const float* queries, const float* keys, const float* values, const int* positions,
                       const int* sequences, float* parts, float* out) {
  constexpr int kWidth = Shape::width, kPart = kWidth + 2;
  __shared__ float query[kWidth];
  __shared__ float of_warps[kAttentionWarps][kPart];
  const int row = blockIdx.x, head = blockIdx.y, position = positions[row], sequence = sequences[row];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long place = (long long)row * Shape::heads + head;
  const bool outside = Outside<Shape>(position, sequence);
  for (int d = threadIdx.x; d < kWidth; d += blockDim.x) query[d] = queries[place * kWidth + d];
  __syncthreads();
  Partial<kWidth> mine;
  if (!outside) {
    const long long base = Base<Shape>(sequence, head / (Shape::heads / Shape::key_heads));
    const int first = Shape::window == 0 ? 0 : max(0, position - Shape::window + 1);
    const int step = kTile * kAttentionWarps * gridDim.z;
    for (int p = first / kTile * kTile + kTile * (warp + kAttentionWarps * blockIdx.z); p <= position; p += step) {
      const float* key = keys + base + (long long)(p % Shape::capacity) * kWidth + lane % kTile;
      float score = 0.0f;
      for (int d = lane / kTile; d < kWidth; d += 2) score += query[d] * key[d * kTile];
      score = (score + __shfl_xor_sync(0xffffffffu, score, kTile)) * Shape::scale;
      if constexpr (Shape::cap != 0.0f) score = Shape::cap * tanhf(score / Shape::cap);
      const int at = p + lane % kTile;
      if (at < first || at > position) score = -INFINITY;
      float largest = score;
      for (int other = kTile / 2; other > 0; other /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, other));
      }
      mine.Raise(largest);
      const float power = expf(score - mine.largest);
      const float* value = values + base + (long long)(p % Shape::capacity) * kWidth;
      for (int k = 0; k < kTile; ++k) {
        const float share = __shfl_sync(0xffffffffu, power, k);
        mine.sum += share;
        if (p + k < first || p + k > position) continue;  // what lies there was never written
        for (int j = 0; j < mine.kOfLane; ++j) {
          if (lane + 32 * j < kWidth) mine.mixed[j] += share * value[(long long)k * kWidth + lane + 32 * j];
        }
      }
    }
  }
  if (lane == 0) of_warps[warp][kWidth] = mine.largest;
  if (lane == 0) of_warps[warp][kWidth + 1] = mine.sum;
  for (int j = 0; j < mine.kOfLane; ++j) {
    if (lane + 32 * j < kWidth) of_warps[warp][lane + 32 * j] = mine.mixed[j];
  }
  __syncthreads();
  float largest = -INFINITY, sum = 0.0f;
  for (int w = 0; w < kAttentionWarps; ++w) largest = fmaxf(largest, of_warps[w][kWidth]);
  float factors[kAttentionWarps];
  for (int w = 0; w < kAttentionWarps; ++w) {
    factors[w] = of_warps[w][kWidth] == -INFINITY ? 0.0f : expf(of_warps[w][kWidth] - largest);
    sum += factors[w] * of_warps[w][kWidth + 1];
  }
  float* part = parts == nullptr ? nullptr : parts + (place * gridDim.z + blockIdx.z) * kPart;
  for (int d = threadIdx.x; d < kWidth; d += blockDim.x) {
    float mixed = 0.0f;
    for (int w = 0; w < kAttentionWarps; ++w) mixed += factors[w] * of_warps[w][d];
    if (part == nullptr) out[place * kWidth + d] = outside ? 0.0f : mixed / sum;
    if (part != nullptr) part[d] = mixed;
  }
  if (part != nullptr && threadIdx.x == 0) part[kWidth] = largest;
  if (part != nullptr && threadIdx.x == 0) part[kWidth + 1] = sum;
}

/// Join the parts of a row's head, a block each.
template <int kWidth, int kParts>
__device__ void join_parts(const float* parts, float* out) {
  const long long place = (long long)blockIdx.x * gridDim.y + blockIdx.y;
  parts += place * kParts * (kWidth + 2);
  float largest = -INFINITY, sum = 0.0f;
  for (int k = 0; k < kParts; ++k) largest = fmaxf(largest, parts[k * (kWidth + 2) + kWidth]);
  for (int d = threadIdx.x; d < kWidth; d += blockDim.x) {
    float mixed = 0.0f;
    sum = 0.0f;
    for (int k = 0; k < kParts; ++k) {
      const float* part = parts + k * (kWidth + 2);
      const float factor = part[kWidth] == -INFINITY ? 0.0f : expf(part[kWidth] - largest);
      mixed += factor * part[d];
      sum += factor * part[kWidth + 1];
    }
    out[place * kWidth + d] = sum == 0.0f ? 0.0f : mixed / sum;  // of a row that is padding nothing was summed
  }
}

}  // namespace tvm_sched::language
