// The loops of IntegerTile, included once for each instruction set after its `Isa`, which has:
//
//   Sums          16 int32, zero-initialised by Zero()
//   Bytes         64 bytes, four of each column
//   Load(from)    Bytes of memory
//   Low, High     the lower and upper four bits of each byte, as bytes from 0 to 15
//   Each(four)    four bytes for each column
//   DotUnsigned(sums, weights, numbers)  sums plus products, of weights from 0 to 15
//   DotSigned(sums, weights, numbers)    of weights from -127 to 127, to each of which kShift is
//                                        added first
//   Floats, ToFloats(sums), LoadHalves, LoadZeros, Fma(a, b, c), EachFloat, StoreFloats

template <int kRows, Format kFormat>
void Rows(const QuantizedRow* rows, std::int64_t groups, const std::uint8_t* tile,
          const GroupScales& beside, float* results) {
  constexpr int kQuads = static_cast<int>(kGroup) / 4;
  typename Isa::Floats totals[kRows];
  for (int r = 0; r < kRows; ++r) totals[r] = Isa::EachFloat(0);
  for (std::int64_t g = 0; g < groups; ++g) {
    typename Isa::Sums sums[kRows];
    for (int r = 0; r < kRows; ++r) sums[r] = Isa::Zero();
    const std::int8_t* numbers[kRows];
    for (int r = 0; r < kRows; ++r) numbers[r] = rows[r].numbers + g * kGroup;
    if constexpr (kFormat == Format::kInt8) {
#pragma GCC unroll 8
      for (int q = 0; q < kQuads; ++q, tile += 64) {
        __builtin_prefetch(tile + kAhead);
        const typename Isa::Bytes weights = Isa::Load(tile);
        for (int r = 0; r < kRows; ++r) {
          sums[r] = Isa::DotSigned(sums[r], weights, Isa::Each(numbers[r] + 4 * q));
        }
      }
    } else {
#pragma GCC unroll 4
      for (int q = 0; q < kQuads / 2; ++q, tile += 64) {
        __builtin_prefetch(tile + kAhead);
        const typename Isa::Bytes both = Isa::Load(tile);
        const typename Isa::Bytes low = Isa::Low(both), high = Isa::High(both);
        for (int r = 0; r < kRows; ++r) {
          sums[r] = Isa::DotUnsigned(sums[r], low, Isa::Each(numbers[r] + 4 * q));
          sums[r] = Isa::DotUnsigned(sums[r], high, Isa::Each(numbers[r] + 4 * (q + kQuads / 2)));
        }
      }
    }
    const typename Isa::Floats scales = Isa::LoadHalves(beside.scales + g * kColumns);
    for (int r = 0; r < kRows; ++r) {
      typename Isa::Floats sum = Isa::ToFloats(sums[r]);
      if constexpr (kFormat == Format::kInt8 && Isa::kShift != 0) {
        sum = Isa::Add(sum, Isa::EachFloat(static_cast<float>(-Isa::kShift * rows[r].sums[g])));
      } else if constexpr (kFormat == Format::kInt4) {
        sum = Isa::Add(sum, Isa::EachFloat(static_cast<float>(-8 * rows[r].sums[g])));
      } else if constexpr (kFormat == Format::kInt4Zeros) {
        sum = Isa::Fma(Isa::LoadZeros(beside.zeros + g * kColumns),
                       Isa::EachFloat(static_cast<float>(-rows[r].sums[g])), sum);
      }
      totals[r] =
          Isa::Fma(sum, Isa::Multiply(scales, Isa::EachFloat(rows[r].scales[g])), totals[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) Isa::StoreFloats(results + r * kColumns, totals[r]);
}

template <Format kFormat>
void Tile(const QuantizedRow* rows, int count, std::int64_t groups, const std::uint8_t* tile,
          const GroupScales& beside, float* sums) {
  while (count > 0) {
    int done = 1;
    if (count >= 4) {
      Rows<4, kFormat>(rows, groups, tile, beside, sums);
      done = 4;
    } else if (count >= 2) {
      Rows<2, kFormat>(rows, groups, tile, beside, sums);
      done = 2;
    } else {
      Rows<1, kFormat>(rows, groups, tile, beside, sums);
    }
    rows += done;
    sums += done * kColumns;
    count -= done;
  }
}

void AnyTile(Format format, const QuantizedRow* rows, int count, std::int64_t groups,
             const std::uint8_t* tile, const GroupScales& beside, float* sums) {
  switch (format) {
    case Format::kInt8:
      return Tile<Format::kInt8>(rows, count, groups, tile, beside, sums);
    case Format::kInt4:
      return Tile<Format::kInt4>(rows, count, groups, tile, beside, sums);
    default:
      return Tile<Format::kInt4Zeros>(rows, count, groups, tile, beside, sums);
  }
}
