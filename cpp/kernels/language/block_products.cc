// Products with integers of 2, 4 or 8 bits in blocks: the numbers become float32 in registers.
#include <algorithm>
#include <cstring>

#include "kernels/language/products.h"
#include "kernels/onednn/vector_math.h"

namespace tvm_sched::language {

namespace {

using onednn::VectorOf;
using Floats = VectorOf<float, kColumns>::Type;
using Integers = VectorOf<std::int32_t, kColumns>::Type;
/// Terms of a column in a word.
template <int kBits>
constexpr int kTermsOf = 32 / kBits;

template <typename Number>
inline __attribute__((always_inline)) void LoadAs(const void* from, std::int64_t row, Floats& to) {
  typename VectorOf<Number, kColumns>::Type values;
  std::memcpy(&values, static_cast<const Number*>(from) + row * kColumns, sizeof values);
  to = __builtin_convertvector(values, Floats);
}

/// float16 as float32, exactly; infinity and NaN are no scales.
inline __attribute__((always_inline)) void LoadFloat16(const void* from, std::int64_t row,
                                                       Floats& to) {
  VectorOf<std::uint16_t, kColumns>::Type halves;
  std::memcpy(&halves, static_cast<const std::uint16_t*>(from) + row * kColumns, sizeof halves);
  const Integers bits = __builtin_convertvector(halves, Integers);
  const Integers magnitude = bits & 0x7fff, sign = (bits & 0x8000) << 16;
  const Integers normal = (magnitude << 13) + (112 << 23);
  const Floats small = __builtin_convertvector(magnitude, Floats) * 0x1p-24f;
  Integers tiny;
  std::memcpy(&tiny, &small, sizeof tiny);
  const Integers result = (magnitude < 0x400 ? tiny : normal) | sign;
  std::memcpy(&to, &result, sizeof to);
}

inline __attribute__((always_inline)) void LoadScale(const BlockLayout& layout,
                                                     const BlockTile& tile, std::int64_t block,
                                                     Floats& scale, Floats& zero) {
  if (layout.scales == BlockLayout::Scales::kFloat16) {
    LoadFloat16(tile.scales, block, scale);
  } else {
    LoadAs<float>(tile.scales, block, scale);
  }
  if (layout.zeros == BlockLayout::Zeros::kUint8) {
    LoadAs<std::uint8_t>(tile.zeros, block, zero);
  } else if (layout.zeros == BlockLayout::Zeros::kFloat32) {
    LoadAs<float>(tile.zeros, block, zero);
  } else {
    zero = Floats{} + static_cast<float>(1 << (layout.bits - 1));
  }
}

/// Number `k` of each word, less its zero point.
template <int kBits>
inline __attribute__((always_inline)) void Decode(const Integers& words, int k, const Floats& zero,
                                                  Floats& to) {
  const Integers numbers = (words >> (k * kBits)) & ((1 << kBits) - 1);
  to = __builtin_convertvector(numbers, Floats) - zero;
}

template <int kBits, int kRows>
inline __attribute__((always_inline)) void RowsOf(const BlockLayout& layout,
                                                  const float* const* rows, std::int64_t terms,
                                                  const BlockTile& tile, float* sums) {
  // One row: four sums at once hide the latency of an addition.
  constexpr int kParts = kRows == 1 ? 4 : 1;
  Floats totals[kRows] = {}, scale, zero, numbers;
  Integers words;
  const float* from[kRows];
  for (int r = 0; r < kRows; ++r) from[r] = rows[r];
  const std::uint8_t* place = tile.numbers;
  for (std::int64_t first = 0, block = 0; first < terms; first += layout.terms, ++block) {
    LoadScale(layout, tile, block, scale, zero);
    Floats parts[kRows][kParts] = {};
    const std::int64_t end = std::min(first + layout.terms, terms);
    std::int64_t k = first;
    for (; k + kTermsOf<kBits> <= end; k += kTermsOf<kBits>, place += sizeof words) {
      std::memcpy(&words, place, sizeof words);
#pragma GCC unroll 16
      for (int u = 0; u < kTermsOf<kBits>; ++u) {
        Decode<kBits>(words, u, zero, numbers);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) parts[r][u % kParts] += from[r][k + u] * numbers;
      }
    }
    if (k < end) {
      std::memcpy(&words, place, sizeof words);
      for (int u = 0; k + u < end; ++u) {
        Decode<kBits>(words, u, zero, numbers);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) parts[r][0] += from[r][k + u] * numbers;
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Floats sum = parts[r][0];
      for (int part = 1; part < kParts; ++part) sum += parts[r][part];
      totals[r] += sum * scale;
    }
  }
  std::memcpy(sums, totals, sizeof totals);
}

template <int kBits>
inline __attribute__((always_inline)) void WidenOf(const BlockLayout& layout, std::int64_t terms,
                                                   const BlockTile& tile, float* to) {
  Floats scale, zero, numbers;
  Integers words;
  const std::uint8_t* place = tile.numbers;
  for (std::int64_t first = 0, block = 0; first < terms; first += layout.terms, ++block) {
    LoadScale(layout, tile, block, scale, zero);
    const std::int64_t end = std::min(first + layout.terms, terms);
    for (std::int64_t k = first; k < end; k += kTermsOf<kBits>, place += sizeof words) {
      std::memcpy(&words, place, sizeof words);
      const auto count = static_cast<int>(std::min<std::int64_t>(kTermsOf<kBits>, end - k));
      for (int u = 0; u < count; ++u) {
        Decode<kBits>(words, u, zero, numbers);
        numbers *= scale;
        std::memcpy(to + (k + u) * kColumns, &numbers, sizeof numbers);
      }
    }
  }
}

template <int kBits>
inline __attribute__((always_inline)) void EachRows(const BlockLayout& layout,
                                                    const float* const* rows, int count,
                                                    std::int64_t terms, const BlockTile& tile,
                                                    float* sums) {
  switch (count) {
    case 1:
      return RowsOf<kBits, 1>(layout, rows, terms, tile, sums);
    case 2:
      return RowsOf<kBits, 2>(layout, rows, terms, tile, sums);
    case 3:
      return RowsOf<kBits, 3>(layout, rows, terms, tile, sums);
    default:
      return RowsOf<kBits, kMostBlockRows>(layout, rows, terms, tile, sums);
  }
}

TVM_SCHED_VERSIONS void RowsOfBits(const BlockLayout& layout, const float* const* rows, int count,
                                   std::int64_t terms, const BlockTile& tile, float* sums) {
  if (layout.bits == 2) {
    EachRows<2>(layout, rows, count, terms, tile, sums);
  } else if (layout.bits == 4) {
    EachRows<4>(layout, rows, count, terms, tile, sums);
  } else {
    EachRows<8>(layout, rows, count, terms, tile, sums);
  }
}

TVM_SCHED_VERSIONS void WidenBits(const BlockLayout& layout, std::int64_t terms,
                                  const BlockTile& tile, float* to) {
  if (layout.bits == 2) {
    WidenOf<2>(layout, terms, tile, to);
  } else if (layout.bits == 4) {
    WidenOf<4>(layout, terms, tile, to);
  } else {
    WidenOf<8>(layout, terms, tile, to);
  }
}

}  // namespace

void BlockRows(const BlockLayout& layout, const float* const* rows, int count, std::int64_t terms,
               const BlockTile& tile, float* sums) {
  RowsOfBits(layout, rows, count, terms, tile, sums);
}

void WidenBlocks(const BlockLayout& layout, std::int64_t terms, const BlockTile& tile, float* to) {
  WidenBits(layout, terms, tile, to);
}

}  // namespace tvm_sched::language
