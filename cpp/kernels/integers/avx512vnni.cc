#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/integers/functions.h"

// GCC 12 warns of its own header.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")

namespace tvm_sched::integers {

namespace {

namespace avx512vnni {

/// Entries of a table of 256 bytes.
__attribute__((target("avx512vbmi"))) __m256i LookUpByPermutation(const std::uint8_t* table,
                                                                  __m256i bytes) {
  const __m512i places = _mm512_castsi256_si512(bytes);
  const __m512i low =
      _mm512_permutex2var_epi8(_mm512_loadu_si512(table), places, _mm512_loadu_si512(table + 64));
  const __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), places,
                                                _mm512_loadu_si512(table + 192));
  const __mmask32 upper = _mm256_movepi8_mask(bytes);
  return _mm256_mask_mov_epi8(_mm512_castsi512_si256(low), upper, _mm512_castsi512_si256(high));
}

struct Isa {
  using Ints = __m512i;
  using Bytes = __m512i;
  using Floats = __m512;
  static constexpr int kLanes = 16, kRows = 8, kChains = 2;
  static constexpr bool kSaturates = true;  // StoreBytes

  static Ints Zeros() { return _mm512_setzero_si512(); }
  static Ints EachInt(std::int32_t value) { return _mm512_set1_epi32(value); }
  static Floats EachFloat(float value) { return _mm512_set1_ps(value); }
  static Ints Add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Ints LoadInts(const std::int32_t* from) { return _mm512_loadu_si512(from); }
  static void StoreInts(std::int32_t* to, Ints value) { _mm512_storeu_si512(to, value); }
  static Floats LoadFloats(const float* from) { return _mm512_loadu_ps(from); }
  static void StoreFloats(float* to, Floats value) { _mm512_storeu_ps(to, value); }
  static Bytes Load(const std::int8_t* from) { return _mm512_loadu_si512(from); }
  static Bytes Each(const std::uint8_t* four) {
    std::int32_t all;
    __builtin_memcpy(&all, four, sizeof all);
    return _mm512_set1_epi32(all);
  }
  static Ints Dot(Ints sums, Bytes numbers, Bytes weights) {
    return _mm512_dpbusd_epi32(sums, numbers, weights);
  }
  static Floats ToFloats(Ints value) { return _mm512_cvtepi32_ps(value); }
  /// NaN stays.
  static Floats Bounded(Floats value, float least, float greatest) {
    return _mm512_min_ps(_mm512_set1_ps(greatest), _mm512_max_ps(_mm512_set1_ps(least), value));
  }
  /// The quotient rounded to nearest, where that matters: what is far beyond the result's 256
  /// values, of which `least` is the first, is brought near, so that no remainder is infinite.
  static Floats Quotient(Floats value, const Epilogue& epilogue, int least) {
    const float divisor = epilogue.divisor;
    if (epilogue.reciprocal == 0) return value / EachFloat(divisor);
    const auto bound = static_cast<float>(least - epilogue.zero);
    value = Bounded(value, (bound - 2) * divisor, (bound + 258) * divisor);
    const Floats by = EachFloat(divisor), reciprocal = EachFloat(epilogue.reciprocal);
    Floats found = value * reciprocal;
    found = _mm512_fmadd_ps(_mm512_fnmadd_ps(found, by, value), reciprocal, found);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(found, by, value), reciprocal, found);
  }
  static Ints Rounded(Floats value) { return _mm512_cvtps_epi32(value); }
  static Ints Within(Ints value, std::int32_t low, std::int32_t high) {
    return _mm512_min_epi32(_mm512_max_epi32(value, EachInt(low)), EachInt(high));
  }
  /// The greater of a number that is not negative and of the absolute value of another.
  static Floats Farther(Floats most, Floats value) {
    return _mm512_max_ps(most, _mm512_abs_ps(value));
  }
  static bool AnyAbove(Floats value, float bound) {
    return _mm512_cmp_ps_mask(value, EachFloat(bound), _CMP_GT_OQ) != 0;
  }
  static void StoreBytes(void* to, const Ints (&values)[1], bool is_signed) {
    const __m128i bytes = is_signed ? _mm512_cvtsepi32_epi8(values[0])
                                    : _mm512_cvtusepi32_epi8(_mm512_max_epi32(values[0], Zeros()));
    _mm_storeu_si128(static_cast<__m128i*>(to), bytes);
  }
  /// Both rows may be the same.
  static void LookUp(const std::uint8_t* table, std::uint8_t* one, std::uint8_t* other) {
    static const bool has_permutation = __builtin_cpu_supports("avx512vbmi") != 0;
    auto *low = reinterpret_cast<__m128i*>(one), *high = reinterpret_cast<__m128i*>(other);
    if (!has_permutation) {
      for (int k = 0; k < kColumns; ++k) one[k] = table[one[k]];
      if (one == other) return;
      for (int k = 0; k < kColumns; ++k) other[k] = table[other[k]];
      return;
    }
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                                  _mm_loadu_si128(high), 1);
    const __m256i found = LookUpByPermutation(table, bytes);
    _mm_storeu_si128(low, _mm256_castsi256_si128(found));
    _mm_storeu_si128(high, _mm256_extracti128_si256(found, 1));
  }
};

#include "kernels/integers/byte_loops.h"
#include "kernels/integers/finish.h"

}  // namespace avx512vnni

}  // namespace

const ByteProducts kAvx512Vnni = avx512vnni::kByteProducts;

void FinishAvx512(const Epilogue& epilogue, const std::int32_t* sums, int rows, std::int64_t first,
                  int columns, void* to, std::int64_t apart) {
  avx512vnni::Finish(epilogue, sums, rows, first, columns, to, apart);
}

}  // namespace tvm_sched::integers

#pragma GCC pop_options
#endif
