// Products of bytes, written once for several instruction sets, like loops.h. `Isa` has:
//
//   Ints             sums of kLanes columns
//   Bytes            as many bytes: four of each column
//   kRows, kChains   rows of a tile, and sums that each of its rows is cut into: a sum waits for
//                    the one before it
//   Load, LoadInts, Each  bytes and sums of memory; four bytes for each column
//   Dot(sums, numbers, weights)  sums plus products of unsigned and signed bytes

constexpr int kByteVectors = kColumns / Isa::kLanes;

/// The first kUsed vectors of columns.
template <int kRows, int kUsed>
void ByteProductOf(const Rows<std::uint8_t>& rows, const Terms& terms, const std::int8_t* weights,
                   std::int32_t* sums) {
  constexpr int kStep = 4 * kColumns;  // bytes of the weights
  Isa::Ints totals[Isa::kChains][kRows][kUsed];
#pragma GCC unroll 2
  for (int c = 0; c < Isa::kChains; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kUsed; ++v) totals[c][r][v] = Isa::Zeros();
    }
  }
  for (int s = 0; s < terms.count; ++s) {
    const std::uint8_t* row[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) row[r] = rows.base + rows.places[r] + terms.segments[s];
    const auto add = [&](int chain, std::int64_t step) __attribute__((always_inline)) {
      Isa::Bytes columns[kUsed];
#pragma GCC unroll 2
      for (int v = 0; v < kUsed; ++v) {
        columns[v] = Isa::Load(weights + step * kStep + 4 * Isa::kLanes * v);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Isa::Bytes four = Isa::Each(row[r] + 4 * step);
#pragma GCC unroll 2
        for (int v = 0; v < kUsed; ++v) {
          totals[chain][r][v] = Isa::Dot(totals[chain][r][v], four, columns[v]);
        }
      }
    };
    std::int64_t step = 0;
    for (; step + Isa::kChains <= terms.steps; step += Isa::kChains) {
#pragma GCC unroll 2
      for (int c = 0; c < Isa::kChains; ++c) add(c, step + c);
    }
    for (; step < terms.steps; ++step) add(0, step);
    weights += terms.steps * kStep;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kUsed; ++v) {
      Isa::Ints all = totals[0][r][v];
      if constexpr (Isa::kChains > 1) all = Isa::Add(all, totals[1][r][v]);
      Isa::StoreInts(sums + r * kColumns + v * Isa::kLanes, all);
    }
  }
}

template <int kRows = Isa::kRows>
void ByteProduct(const Rows<std::uint8_t>& rows, const Terms& terms, const std::int8_t* weights,
                 int columns, std::int32_t* sums) {
  constexpr int kHalf = (kByteVectors + 1) / 2;
  if (rows.count == kRows) {
    return columns <= kHalf * Isa::kLanes
               ? ByteProductOf<kRows, kHalf>(rows, terms, weights, sums)
               : ByteProductOf<kRows, kByteVectors>(rows, terms, weights, sums);
  }
  if constexpr (kRows > 1) ByteProduct<kRows - 1>(rows, terms, weights, columns, sums);
}

template <int kRows>
void ByteDepthwiseOf(const Windows& windows, const std::int64_t* segments, int count,
                     const std::byte* weights, const std::int32_t* start, std::int32_t* sums) {
  constexpr int kBytes = 4 * Isa::kLanes;
  Isa::Ints totals[kRows][kByteVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kByteVectors; ++v) totals[r][v] = Isa::LoadInts(start + v * Isa::kLanes);
  }
  for (int s = 0; s < count; ++s, weights += 4 * kColumns) {
    const std::byte* from = windows.base + segments[s];
#pragma GCC unroll 2
    for (int v = 0; v < kByteVectors; ++v) {
      const Isa::Bytes columns =
          Isa::Load(reinterpret_cast<const std::int8_t*>(weights + v * kBytes));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Isa::Bytes numbers =
            Isa::Load(reinterpret_cast<const std::int8_t*>(from + r * windows.apart + v * kBytes));
        totals[r][v] = Isa::Dot(totals[r][v], numbers, columns);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kByteVectors; ++v) {
      Isa::StoreInts(sums + r * kColumns + v * Isa::kLanes, totals[r][v]);
    }
  }
}

/// At most kRows windows.
template <int kRows>
inline __attribute__((always_inline)) void FewByteDepthwise(const Windows& windows,
                                                            const std::int64_t* segments, int count,
                                                            const std::byte* weights,
                                                            const std::int32_t* start,
                                                            std::int32_t* sums) {
  if (windows.count == kRows)
    return ByteDepthwiseOf<kRows>(windows, segments, count, weights, start, sums);
  if constexpr (kRows > 1)
    FewByteDepthwise<kRows - 1>(windows, segments, count, weights, start, sums);
}

template <int kRows = Isa::kRows>
void ByteDepthwise(const Windows& windows, const std::int64_t* segments, int count,
                   const std::byte* weights, const std::int32_t* start, std::int32_t* sums) {
  Windows left = windows;
  for (; left.count >= kRows; left.count -= kRows, sums += kRows * kColumns) {
    ByteDepthwiseOf<kRows>(left, segments, count, weights, start, sums);
    left.base += kRows * left.apart;
  }
  if constexpr (kRows > 1) FewByteDepthwise<kRows - 1>(left, segments, count, weights, start, sums);
}

std::int64_t Filled(std::int64_t steps) { return steps; }

void Nothing() {}

constexpr ByteProducts kByteProducts{Isa::kRows, Filled, ByteProduct<>, Nothing, ByteDepthwise<>};
