// The loops of `Functions`, written once for all instruction sets. A source file defines `Isa`,
// which wraps the instructions of one, and then includes this within its own namespace; so there is
// no guard, and nothing of the standard library, whose functions must not be compiled for an
// instruction set that others lack.

#include "kernels/integers/finish.h"

template <typename Byte>
void Widen(const Byte* from, std::int32_t zero, std::int16_t* to, std::int64_t count) {
  const auto zeros = Isa::EachShort(static_cast<std::int16_t>(zero));
  constexpr int kStep = 2 * Isa::kLanes;
  std::int64_t k = 0;
  for (; k + kStep <= count; k += kStep) {
    Isa::StoreShorts(to + k, Isa::Subtract(Isa::LoadShorts(from + k), zeros));
  }
  for (; k < count; ++k) to[k] = static_cast<std::int16_t>(from[k] - zero);
}

template <typename Weight, int kRows>
void ProductOf(const Rows<std::int16_t>& rows, const Terms& terms, const Weight* weights,
               std::int32_t* sums) {
  Isa::Ints totals[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) totals[r][v] = Isa::Zeros();
  }
  for (int s = 0; s < terms.count; ++s) {
    const std::int16_t* row[kRows];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) row[r] = rows.base + rows.places[r] + terms.segments[s];
    for (std::int64_t p = 0; p < terms.steps; ++p, weights += 2 * kColumns) {
      Isa::Shorts columns[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        columns[v] = Isa::LoadShorts(weights + 2 * Isa::kLanes * v);
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const auto pair = Isa::EachPair(row[r] + 2 * p);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          totals[r][v] = Isa::Add(totals[r][v], Isa::Multiply(pair, columns[v]));
        }
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Isa::StoreInts(sums + r * kColumns + v * Isa::kLanes, totals[r][v]);
    }
  }
}

template <typename Weight, int kRows = Isa::kRows>
void Product(const Rows<std::int16_t>& rows, const Terms& terms, const Weight* weights,
             std::int32_t* sums) {
  if (rows.count == kRows) return ProductOf<Weight, kRows>(rows, terms, weights, sums);
  if constexpr (kRows > 1) Product<Weight, kRows - 1>(rows, terms, weights, sums);
}

template <int kRows>
void DepthwiseOf(const Rows<std::int16_t>& rows, const Terms& terms, const std::int16_t* weights,
                 std::int32_t* sums) {
  constexpr int kStep = 2 * Isa::kLanes;  // channels of a vector of 16-bit numbers
  for (int first = 0; first < kColumns; first += kStep) {
    Isa::Ints low[kRows], high[kRows];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) low[r] = high[r] = Isa::Zeros();
    for (int s = 0; s < terms.count; s += 2) {
      const auto one = Isa::LoadShorts(weights + s * kColumns + first);
      const auto other = Isa::LoadShorts(weights + (s + 1) * kColumns + first);
      const auto low_weights = Isa::InterleaveLow(one, other);
      const auto high_weights = Isa::InterleaveHigh(one, other);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const std::int16_t* row = rows.base + rows.places[r] + first;
        const auto x = Isa::LoadShorts(row + terms.segments[s]);
        const auto y = Isa::LoadShorts(row + terms.segments[s + 1]);
        low[r] = Isa::Add(low[r], Isa::Multiply(Isa::InterleaveLow(x, y), low_weights));
        high[r] = Isa::Add(high[r], Isa::Multiply(Isa::InterleaveHigh(x, y), high_weights));
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      Isa::StoreInterleaved(sums + r * kColumns + first, low[r], high[r]);
    }
  }
}

template <int kRows = Isa::kRows < 4 ? Isa::kRows : 4>
void Depthwise(const Rows<std::int16_t>& rows, const Terms& terms, const std::int16_t* weights,
               std::int32_t* sums) {
  if constexpr (kRows > 1) {
    if (rows.count < kRows) return Depthwise<kRows - 1>(rows, terms, weights, sums);
  }
  DepthwiseOf<kRows>(rows, terms, weights, sums);
  if (rows.count > kRows) {
    const Rows<std::int16_t> others{rows.base, rows.places + kRows, rows.count - kRows};
    Depthwise<kRows>(others, terms, weights, sums + kRows * kColumns);
  }
}

constexpr Functions kFunctions{Isa::kRows,
                               Widen<std::int8_t>,
                               Widen<std::uint8_t>,
                               Product<std::int8_t>,
                               Product<std::int16_t>,
                               Depthwise<>,
                               Finish};
