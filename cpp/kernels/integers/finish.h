// What becomes of sums, written once for all instruction sets, like loops.h.

constexpr int kVectors = kColumns / Isa::kLanes;

/// One row of a tile, all columns of it.
template <Result kResult>
inline __attribute__((always_inline)) void FinishRow(const Epilogue& epilogue,
                                                     const std::int32_t* sums, std::int64_t first,
                                                     void* to) {
  Isa::Ints values[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t column = first + v * Isa::kLanes;
    Isa::Ints sum = Isa::LoadInts(sums + v * Isa::kLanes);
    if (epilogue.bias != nullptr) sum = Isa::Add(sum, Isa::LoadInts(epilogue.bias + column));
    if constexpr (kResult == Result::kInt32) {
      Isa::StoreInts(static_cast<std::int32_t*>(to) + v * Isa::kLanes, sum);
      continue;
    }
    Isa::Floats value = Isa::ToFloats(sum);
    if (epilogue.factor != nullptr) value = value * Isa::LoadFloats(epilogue.factor + column);
    if (epilogue.summand != nullptr) value = value + Isa::LoadFloats(epilogue.summand + column);
    value = Isa::Bounded(value, epilogue.least, epilogue.greatest);
    if constexpr (kResult == Result::kFloat32) {
      Isa::StoreFloats(static_cast<float*>(to) + v * Isa::kLanes, value);
    } else {
      constexpr int kLeast = kResult == Result::kInt8 ? -128 : 0;
      if (epilogue.divisor != 1) value = Isa::Quotient(value, epilogue, kLeast);
      // The bounds are whole numbers, so it is the same whether rounding or they come first.
      value = Isa::Bounded(value, static_cast<float>(kLeast - epilogue.zero),
                           static_cast<float>(kLeast + 255 - epilogue.zero));
      values[v] = Isa::Add(Isa::Rounded(value), Isa::EachInt(epilogue.zero));
    }
  }
  if constexpr (kResult == Result::kInt8 || kResult == Result::kUint8) {
    Isa::StoreBytes(to, values, kResult == Result::kInt8);
  }
}

/// Replaces the kColumns bytes of each row by the table's.
inline void LookUpRows(const std::uint8_t* table, std::uint8_t* to, std::int64_t apart, int rows) {
  for (int r = 0; r < rows; r += 2) {
    Isa::LookUp(table, to + r * apart, to + (r + 1 < rows ? r + 1 : r) * apart);
  }
}

template <Result kResult>
void FinishRows(const Epilogue& epilogue, const std::int32_t* sums, int rows, std::int64_t first,
                int columns, void* to, std::int64_t apart) {
  constexpr int kSize = kResult == Result::kInt8 || kResult == Result::kUint8 ? 1 : 4;
  auto* bytes = static_cast<std::uint8_t*>(to);
  if (columns == kColumns) {
    for (int r = 0; r < rows; ++r) {
      FinishRow<kResult>(epilogue, sums + r * kColumns, first, bytes + r * apart);
    }
  } else {
    for (int r = 0; r < rows; ++r) {
      alignas(64) char whole[kColumns * kSize];
      FinishRow<kResult>(epilogue, sums + r * kColumns, first, whole);
      __builtin_memcpy(bytes + r * apart, whole, static_cast<unsigned long>(columns) * kSize);
    }
  }
  if constexpr (kSize == 1) {
    if (epilogue.table == nullptr) return;
    if (columns == kColumns) return LookUpRows(epilogue.table, bytes, apart, rows);
    for (int r = 0; r < rows; ++r, bytes += apart) {
      for (int k = 0; k < columns; ++k) bytes[k] = epilogue.table[bytes[k]];
    }
  }
}

void Finish(const Epilogue& epilogue, const std::int32_t* sums, int rows, std::int64_t first,
            int columns, void* to, std::int64_t apart) {
  switch (epilogue.result) {
    case Result::kInt32:
      return FinishRows<Result::kInt32>(epilogue, sums, rows, first, columns, to, apart);
    case Result::kFloat32:
      return FinishRows<Result::kFloat32>(epilogue, sums, rows, first, columns, to, apart);
    case Result::kInt8:
      return FinishRows<Result::kInt8>(epilogue, sums, rows, first, columns, to, apart);
    case Result::kUint8:
      return FinishRows<Result::kUint8>(epilogue, sums, rows, first, columns, to, apart);
  }
}
