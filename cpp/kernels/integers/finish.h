// What becomes of sums, written once for all instruction sets, like loops.h.

constexpr int kVectors = kColumns / Isa::kLanes;

/// What is the same for all rows of a tile. Missing numbers change nothing: 0, 1 and -0.
struct Columns {
  Isa::Ints bias[kVectors];
  Isa::Floats factor[kVectors], summand[kVectors];
};

inline __attribute__((always_inline)) Columns ColumnsOf(const Epilogue& epilogue,
                                                        std::int64_t first) {
  Columns columns;
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t column = first + v * Isa::kLanes;
    columns.bias[v] =
        epilogue.bias != nullptr ? Isa::LoadInts(epilogue.bias + column) : Isa::Zeros();
    columns.factor[v] = epilogue.factor != nullptr ? Isa::LoadFloats(epilogue.factor + column)
                                                   : Isa::EachFloat(1.0F);
    columns.summand[v] = epilogue.summand != nullptr ? Isa::LoadFloats(epilogue.summand + column)
                                                     : Isa::EachFloat(-0.0F);
  }
  return columns;
}

/// One row of a tile, all columns of it.
template <Result kResult>
inline __attribute__((always_inline)) void FinishRow(const Epilogue& epilogue,
                                                     const Columns& columns,
                                                     const std::int32_t* sums, void* to) {
  Isa::Ints values[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Isa::Ints sum = Isa::Add(Isa::LoadInts(sums + v * Isa::kLanes), columns.bias[v]);
    if constexpr (kResult == Result::kInt32) {
      Isa::StoreInts(static_cast<std::int32_t*>(to) + v * Isa::kLanes, sum);
      continue;
    }
    Isa::Floats value = Isa::ToFloats(sum) * columns.factor[v] + columns.summand[v];
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

inline void CopyFew(std::uint8_t* to, const std::uint8_t* from, int bytes) {
  for (; bytes >= 8; bytes -= 8, to += 8, from += 8) __builtin_memcpy(to, from, 8);
  const auto copy = [&](auto size) __attribute__((always_inline)) {
    if ((bytes & size()) == 0) return;
    __builtin_memcpy(to, from, size());
    to += size(), from += size();
  };
  copy([] { return 4; }), copy([] { return 2; }), copy([] { return 1; });
}

/// The epilogue is a copy, which the rows that are stored cannot change.
template <Result kResult>
__attribute__((noinline)) void FinishRows(const Epilogue epilogue, const std::int32_t* sums,
                                          int rows, std::int64_t first, int columns, void* to,
                                          std::int64_t apart) {
  constexpr int kSize = kResult == Result::kInt8 || kResult == Result::kUint8 ? 1 : 4;
  auto* bytes = static_cast<std::uint8_t*>(to);
  const Columns same = ColumnsOf(epilogue, first);
  if (columns == kColumns) {
    for (int r = 0; r < rows; ++r) {
      FinishRow<kResult>(epilogue, same, sums + r * kColumns, bytes + r * apart);
    }
    if constexpr (kSize == 1) {
      if (epilogue.table != nullptr) LookUpRows(epilogue.table, bytes, apart, rows);
    }
    return;
  }
  for (int r = 0; r < rows; ++r) {
    alignas(64) std::uint8_t whole[kColumns * kSize];
    FinishRow<kResult>(epilogue, same, sums + r * kColumns, whole);
    if constexpr (kSize == 1) {
      if (epilogue.table != nullptr) LookUpRows(epilogue.table, whole, 0, 1);
    }
    CopyFew(bytes + r * apart, whole, columns * kSize);
  }
}

/// As FinishRows, by one multiplication and addition; by FinishRows where results are in doubt.
template <Result kResult, typename Set = Isa>
void FinishQuickly(Epilogue epilogue, const std::int32_t* sums, int rows, std::int64_t first,
                   int columns, void* to, std::int64_t apart) {
  constexpr int kTogether = 2;
  typename Set::Ints bias[kVectors];
  typename Set::Floats slope[kVectors], intercept[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t column = first + v * Set::kLanes;
    bias[v] = epilogue.bias != nullptr ? Set::LoadInts(epilogue.bias + column) : Set::Zeros();
    slope[v] = Set::LoadFloats(epilogue.slope + column);
    intercept[v] = Set::LoadFloats(epilogue.intercept + column);
  }
  const float sure = 0.5F - epilogue.doubt;
  const std::uint8_t* table = epilogue.table;
  if (columns == kColumns) epilogue.table = nullptr;  // all rows at the end
  auto* bytes = static_cast<std::uint8_t*>(to);
  for (int r = 0; r < rows; r += kTogether, bytes += kTogether * apart) {
    const int there = rows - r < kTogether ? rows - r : kTogether;
    typename Set::Ints values[kTogether][kVectors];
    auto most = Set::EachFloat(0);
#pragma GCC unroll 2
    for (int k = 0; k < kTogether; ++k) {
      const std::int32_t* row = sums + (r + (k < there ? k : 0)) * kColumns;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const auto sum = Set::Add(Set::LoadInts(row + v * Set::kLanes), bias[v]);
        const auto value = Set::ToFloats(sum) * slope[v] + intercept[v];
        const auto whole = Set::Rounded(value);
        most = Set::Farther(most, value - Set::ToFloats(whole));
        values[k][v] =
            Set::Within(Set::Add(whole, Set::EachInt(epilogue.zero)), epilogue.low, epilogue.high);
      }
    }
    if (Set::AnyAbove(most, sure)) {
      FinishRows<kResult>(epilogue, sums + r * kColumns, there, first, columns, bytes, apart);
      continue;
    }
    alignas(64) std::uint8_t whole[kTogether * kColumns];
    const bool in_place = columns == kColumns && there == kTogether;
    std::uint8_t* one = in_place ? bytes : whole;
    std::uint8_t* other = in_place ? bytes + apart : whole + kColumns;
    Set::StoreBytes(one, values[0], kResult == Result::kInt8);
    Set::StoreBytes(other, values[1], kResult == Result::kInt8);
    if (epilogue.table != nullptr) Set::LookUp(epilogue.table, one, other);
    if (in_place) continue;
    CopyFew(bytes, one, columns);
    if (there == kTogether) CopyFew(bytes + apart, other, columns);
  }
  if (columns == kColumns && table != nullptr) {
    LookUpRows(table, static_cast<std::uint8_t*>(to), apart, rows);
  }
}

void Finish(const Epilogue& epilogue, const std::int32_t* sums, int rows, std::int64_t first,
            int columns, void* to, std::int64_t apart) {
  if constexpr (Isa::kSaturates) {
    if (epilogue.slope != nullptr) {
      const auto finish = epilogue.result == Result::kInt8 ? FinishQuickly<Result::kInt8>
                                                           : FinishQuickly<Result::kUint8>;
      return finish(epilogue, sums, rows, first, columns, to, apart);
    }
  }
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
