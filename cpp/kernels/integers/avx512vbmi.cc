#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/integers/functions.h"

// GCC 12 warns of its own header.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")

namespace tvm_sched::integers {

namespace {

constexpr int kTogether = 4;  // rows

using FinishFunction = void (*)(const Epilogue& epilogue, const std::int32_t* sums, int rows,
                                std::int64_t first, int columns, std::uint8_t* to,
                                std::int64_t apart);

enum class Division { kNone, kNewton, kDivide };

/// What is the same for all rows of a tile.
struct Steps {
  __m512i bias, zero;
  __m512 factor, summand, low, high, divisor, reciprocal;
};

inline float Within(float value, float low, float high) {
  return value < low ? low : value > high ? high : value;
}

/// The two bounds, of the numbers and of the results, are one: what is far beyond the 256 results
/// is brought near, so that no remainder is infinite. Quotients are rounded before they are cut.
Steps StepsOf(const Epilogue& e, std::int64_t first) {
  const auto end = static_cast<float>((e.result == Result::kInt8 ? -128 : 0) - e.zero);
  const float low = (end - 2) * e.divisor, high = (end + 258) * e.divisor;
  return {e.bias != nullptr ? _mm512_loadu_si512(e.bias + first) : _mm512_setzero_si512(),
          _mm512_set1_epi16(static_cast<short>(e.zero)),
          e.factor != nullptr ? _mm512_loadu_ps(e.factor + first) : _mm512_set1_ps(1.0F),
          e.summand != nullptr ? _mm512_loadu_ps(e.summand + first) : _mm512_set1_ps(-0.0F),
          _mm512_set1_ps(Within(e.least, low, high)),
          _mm512_set1_ps(Within(e.greatest, low, high)),
          _mm512_set1_ps(e.divisor),
          _mm512_set1_ps(e.reciprocal)};
}

/// Whole numbers of a row, less the zero point. NaN becomes the least.
template <Division kDivision>
inline __attribute__((always_inline)) __m512i Rounded(const Steps& steps,
                                                      const std::int32_t* sums) {
  const __m512i sum = _mm512_add_epi32(_mm512_loadu_si512(sums), steps.bias);
  __m512 value = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), steps.factor), steps.summand);
  value = _mm512_min_ps(steps.high, _mm512_max_ps(steps.low, value));
  if constexpr (kDivision == Division::kNewton) {
    const __m512 by = steps.divisor, reciprocal = steps.reciprocal;
    __m512 found = _mm512_mul_ps(value, reciprocal);
    found = _mm512_fmadd_ps(_mm512_fnmadd_ps(found, by, value), reciprocal, found);
    value = _mm512_fmadd_ps(_mm512_fnmadd_ps(found, by, value), reciprocal, found);
  } else if constexpr (kDivision == Division::kDivide) {
    value = _mm512_div_ps(value, steps.divisor);
  }
  return _mm512_cvtps_epi32(value);
}

/// Stores the lanes of 128 bits as rows.
inline __attribute__((always_inline)) void StoreRows(__m512i bytes, int rows, int columns,
                                                     std::uint8_t* to, std::int64_t apart) {
  const __m128i each[] = {_mm512_castsi512_si128(bytes), _mm512_extracti32x4_epi32(bytes, 1),
                          _mm512_extracti32x4_epi32(bytes, 2), _mm512_extracti32x4_epi32(bytes, 3)};
  if (columns == kColumns && rows >= kTogether) {
#pragma GCC unroll 4
    for (int k = 0; k < kTogether; ++k) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k * apart), each[k]);
    }
    return;
  }
  // A masked store takes several times as long.
  const auto stored = static_cast<__mmask16>((1U << columns) - 1);
#pragma GCC unroll 4
  for (int k = 0; k < kTogether; ++k) {
    if (k < rows) _mm_mask_storeu_epi8(to + k * apart, stored, each[k]);
  }
}

template <Division kDivision, bool kSigned, bool kTable>
void FinishBytes(const Epilogue& epilogue, const std::int32_t* sums, int rows, std::int64_t first,
                 int columns, std::uint8_t* to, std::int64_t apart) {
  const Steps steps = StepsOf(epilogue, first);
  // Numbers of four rows are packed within lanes of 128 bits.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i table[kTogether];
  if constexpr (kTable) {
    for (int k = 0; k < kTogether; ++k) table[k] = _mm512_loadu_si512(epilogue.table + 64 * k);
  }
  for (int r = 0; r < rows; r += kTogether) {
    const auto row = [&](int k) __attribute__((always_inline)) {
      const int mine = r + k < rows ? r + k : rows - 1;
      return Rounded<kDivision>(steps, sums + mine * kColumns);
    };
    const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(row(0), row(1)), steps.zero);
    const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32(row(2), row(3)), steps.zero);
    __m512i bytes = kSigned ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
    if constexpr (kTable) {
      const __m512i lower = _mm512_permutex2var_epi8(table[0], bytes, table[1]);
      const __m512i upper = _mm512_permutex2var_epi8(table[2], bytes, table[3]);
      bytes = _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(bytes), upper);
    }
    bytes = _mm512_permutexvar_epi32(order, bytes);
    StoreRows(bytes, rows - r, columns, to + r * apart, apart);
  }
}

/// As FinishBytes, by one multiplication and addition. Where a result is near to a half, the rows
/// are computed again by `exact`.
template <bool kSigned, bool kTable>
void FinishQuickly(const Epilogue& epilogue, const std::int32_t* sums, int rows, std::int64_t first,
                   int columns, std::uint8_t* to, std::int64_t apart, FinishFunction exact) {
  const __m512i bias =
      epilogue.bias != nullptr ? _mm512_loadu_si512(epilogue.bias + first) : _mm512_setzero_si512();
  const __m512 slope = _mm512_loadu_ps(epilogue.slope + first);
  const __m512 intercept = _mm512_loadu_ps(epilogue.intercept + first);
  const __m512 sure = _mm512_set1_ps(0.5F - epilogue.doubt);
  const __m512i zero = _mm512_set1_epi16(static_cast<short>(epilogue.zero));
  const __m512i low = _mm512_set1_epi8(static_cast<char>(epilogue.low));
  const __m512i high = _mm512_set1_epi8(static_cast<char>(epilogue.high));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i table[kTogether];
  if constexpr (kTable) {
    for (int k = 0; k < kTogether; ++k) table[k] = _mm512_loadu_si512(epilogue.table + 64 * k);
  }
  for (int r = 0; r < rows; r += kTogether) {
    __m512i whole[kTogether];
    __m512 rest[kTogether];
#pragma GCC unroll 4
    for (int k = 0; k < kTogether; ++k) {
      const int mine = r + k < rows ? r + k : rows - 1;
      const __m512i sum = _mm512_add_epi32(_mm512_loadu_si512(sums + mine * kColumns), bias);
      const __m512 value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), slope, intercept);
      whole[k] = _mm512_cvtps_epi32(value);
      rest[k] = _mm512_reduce_ps(value, 0);
    }
    constexpr int kLarger = 0xB;  // of the absolute values
    const __m512 most = _mm512_range_ps(_mm512_range_ps(rest[0], rest[1], kLarger),
                                        _mm512_range_ps(rest[2], rest[3], kLarger), kLarger);
    if (_mm512_cmp_ps_mask(most, sure, _CMP_GT_OQ) != 0) {
      const int few = rows - r < kTogether ? rows - r : kTogether;
      exact(epilogue, sums + r * kColumns, few, first, columns, to + r * apart, apart);
      continue;
    }
    const __m512i one = _mm512_adds_epi16(_mm512_packs_epi32(whole[0], whole[1]), zero);
    const __m512i other = _mm512_adds_epi16(_mm512_packs_epi32(whole[2], whole[3]), zero);
    __m512i bytes = kSigned ? _mm512_packs_epi16(one, other) : _mm512_packus_epi16(one, other);
    bytes = kSigned ? _mm512_min_epi8(_mm512_max_epi8(bytes, low), high)
                    : _mm512_min_epu8(_mm512_max_epu8(bytes, low), high);
    if constexpr (kTable) {
      const __m512i lower = _mm512_permutex2var_epi8(table[0], bytes, table[1]);
      const __m512i upper = _mm512_permutex2var_epi8(table[2], bytes, table[3]);
      bytes = _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(bytes), upper);
    }
    bytes = _mm512_permutexvar_epi32(order, bytes);
    StoreRows(bytes, rows - r, columns, to + r * apart, apart);
  }
}

template <bool kSigned, bool kTable>
void FinishAs(const Epilogue& epilogue, const std::int32_t* sums, int rows, std::int64_t first,
              int columns, std::uint8_t* to, std::int64_t apart) {
  const FinishFunction exact = epilogue.divisor == 1 ? FinishBytes<Division::kNone, kSigned, kTable>
                               : epilogue.reciprocal != 0
                                   ? FinishBytes<Division::kNewton, kSigned, kTable>
                                   : FinishBytes<Division::kDivide, kSigned, kTable>;
  if (epilogue.slope == nullptr) return exact(epilogue, sums, rows, first, columns, to, apart);
  FinishQuickly<kSigned, kTable>(epilogue, sums, rows, first, columns, to, apart, exact);
}

}  // namespace

void FinishAvx512Vbmi(const Epilogue& epilogue, const std::int32_t* sums, int rows,
                      std::int64_t first, int columns, void* to, std::int64_t apart) {
  if (epilogue.result != Result::kInt8 && epilogue.result != Result::kUint8) {
    return FinishAvx512(epilogue, sums, rows, first, columns, to, apart);
  }
  auto* bytes = static_cast<std::uint8_t*>(to);
  const bool is_signed = epilogue.result == Result::kInt8, table = epilogue.table != nullptr;
  const FinishFunction finish = is_signed
                                    ? (table ? FinishAs<true, true> : FinishAs<true, false>)
                                    : (table ? FinishAs<false, true> : FinishAs<false, false>);
  finish(epilogue, sums, rows, first, columns, bytes, apart);
}

void BringFoursAvx512Vbmi(const std::uint8_t* from, std::int64_t step, std::int64_t apart,
                          std::int64_t count, std::uint8_t* to) {
  alignas(64) std::uint8_t places[64];
  for (int k = 0; k < 64; ++k) places[k] = static_cast<std::uint8_t>(k % 4 * kColumns + k / 4);
  const __m512i order = _mm512_load_si512(places);
  if (apart == kColumns) {
    for (; count > 0; --count, from += step, to += 4 * kColumns) {
      _mm512_store_si512(to, _mm512_permutexvar_epi8(order, _mm512_loadu_si512(from)));
    }
    return;
  }
  for (; count > 0; --count, from += step, to += 4 * kColumns) {
    const auto load = [&](int k) __attribute__((always_inline)) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k * apart));
    };
    __m512i all = _mm512_castsi128_si512(load(0));
    all = _mm512_mask_broadcast_i32x4(all, 0x00F0, load(1));
    all = _mm512_mask_broadcast_i32x4(all, 0x0F00, load(2));
    all = _mm512_mask_broadcast_i32x4(all, 0xF000, load(3));
    _mm512_store_si512(to, _mm512_permutexvar_epi8(order, all));
  }
}

}  // namespace tvm_sched::integers

#pragma GCC pop_options
#endif
