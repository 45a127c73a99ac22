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

/// The first kUsed vectors of columns.
template <typename Weight, int kRows, int kUsed>
void ProductOf(const Rows<std::int16_t>& rows, const Terms& terms, const Weight* weights,
               std::int32_t* sums) {
  Isa::Ints totals[kRows][kUsed];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kUsed; ++v) totals[r][v] = Isa::Zeros();
  }
  for (int s = 0; s < terms.count; ++s) {
    const std::int16_t* row[kRows];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) row[r] = rows.base + rows.places[r] + terms.segments[s];
    for (std::int64_t p = 0; p < terms.steps; ++p, weights += 2 * kColumns) {
      Isa::Shorts columns[kUsed];
#pragma GCC unroll 4
      for (int v = 0; v < kUsed; ++v) {
        columns[v] = Isa::LoadShorts(weights + 2 * Isa::kLanes * v);
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const auto pair = Isa::EachPair(row[r] + 2 * p);
#pragma GCC unroll 4
        for (int v = 0; v < kUsed; ++v) {
          totals[r][v] = Isa::Add(totals[r][v], Isa::Multiply(pair, columns[v]));
        }
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kUsed; ++v) {
      Isa::StoreInts(sums + r * kColumns + v * Isa::kLanes, totals[r][v]);
    }
  }
}

template <typename Weight, int kRows = Isa::kRows>
void Product(const Rows<std::int16_t>& rows, const Terms& terms, const Weight* weights, int columns,
             std::int32_t* sums) {
  if (rows.count == kRows) {
    return columns <= kColumns / 2
               ? ProductOf<Weight, kRows, kVectors / 2>(rows, terms, weights, sums)
               : ProductOf<Weight, kRows, kVectors>(rows, terms, weights, sums);
  }
  if constexpr (kRows > 1) Product<Weight, kRows - 1>(rows, terms, weights, columns, sums);
}

template <int kRows>
void DepthwiseOf(const Windows& windows, const std::int64_t* segments, int count,
                 const std::byte* weights, const std::int32_t* start, std::int32_t* sums) {
  constexpr int kBytes = 4 * Isa::kLanes;
  Isa::Ints totals[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) totals[r][v] = Isa::LoadInts(start + v * Isa::kLanes);
  }
  for (int s = 0; s < count; ++s, weights += 4 * kColumns) {
    const std::byte* from = windows.base + segments[s];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const auto columns =
          Isa::LoadShorts(reinterpret_cast<const std::int16_t*>(weights + v * kBytes));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const auto pairs = Isa::LoadShorts(
            reinterpret_cast<const std::int16_t*>(from + r * windows.apart + v * kBytes));
        totals[r][v] = Isa::Add(totals[r][v], Isa::Multiply(pairs, columns));
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Isa::StoreInts(sums + r * kColumns + v * Isa::kLanes, totals[r][v]);
    }
  }
}

/// At most kRows windows.
template <int kRows>
inline __attribute__((always_inline)) void FewDepthwise(const Windows& windows,
                                                        const std::int64_t* segments, int count,
                                                        const std::byte* weights,
                                                        const std::int32_t* start,
                                                        std::int32_t* sums) {
  if (windows.count == kRows)
    return DepthwiseOf<kRows>(windows, segments, count, weights, start, sums);
  if constexpr (kRows > 1) FewDepthwise<kRows - 1>(windows, segments, count, weights, start, sums);
}

template <int kRows = Isa::kRows < 4 ? Isa::kRows : 4>
void Depthwise(const Windows& windows, const std::int64_t* segments, int count,
               const std::byte* weights, const std::int32_t* start, std::int32_t* sums) {
  Windows left = windows;
  for (; left.count >= kRows; left.count -= kRows, sums += kRows * kColumns) {
    DepthwiseOf<kRows>(left, segments, count, weights, start, sums);
    left.base += kRows * left.apart;
  }
  if constexpr (kRows > 1) FewDepthwise<kRows - 1>(left, segments, count, weights, start, sums);
}

constexpr Functions kFunctions{Isa::kRows,
                               Widen<std::int8_t>,
                               Widen<std::uint8_t>,
                               Product<std::int8_t>,
                               Product<std::int16_t>,
                               Depthwise<>,
                               Finish};
