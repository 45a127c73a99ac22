#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/integers/functions.h"

#pragma GCC push_options
#pragma GCC target("avx2")

namespace tvm_sched::integers {

namespace {

namespace avx2 {

struct Isa {
  using Ints = __m256i;    // of 32 bits
  using Shorts = __m256i;  // of 16 bits
  using Floats = __m256;
  static constexpr int kLanes = 8, kRows = 6;
  static constexpr bool kSaturates = true;  // StoreBytes

  static Ints Zeros() { return _mm256_setzero_si256(); }
  static Ints EachInt(std::int32_t value) { return _mm256_set1_epi32(value); }
  static Floats EachFloat(float value) { return _mm256_set1_ps(value); }
  static Shorts EachShort(std::int16_t value) { return _mm256_set1_epi16(value); }
  static Shorts EachPair(const std::int16_t* pair) {
    std::int32_t both;
    __builtin_memcpy(&both, pair, sizeof both);
    return _mm256_set1_epi32(both);
  }
  static Shorts LoadShorts(const std::int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Shorts LoadShorts(const std::uint8_t* from) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Shorts LoadShorts(const std::int16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void StoreShorts(std::int16_t* to, Shorts value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  }
  static Ints LoadInts(const std::int32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void StoreInts(std::int32_t* to, Ints value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  }
  static Floats LoadFloats(const float* from) { return _mm256_loadu_ps(from); }
  static void StoreFloats(float* to, Floats value) { _mm256_storeu_ps(to, value); }

  static Shorts Subtract(Shorts a, Shorts b) { return _mm256_sub_epi16(a, b); }
  static Ints Add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  static Ints Multiply(Shorts a, Shorts b) { return _mm256_madd_epi16(a, b); }
  static Floats ToFloats(Ints value) { return _mm256_cvtepi32_ps(value); }
  /// NaN stays.
  static Floats Bounded(Floats value, float least, float greatest) {
    return _mm256_min_ps(_mm256_set1_ps(greatest), _mm256_max_ps(_mm256_set1_ps(least), value));
  }
  static Floats Quotient(Floats value, const Epilogue& epilogue, int) {
    return value / EachFloat(epilogue.divisor);
  }
  static Ints Rounded(Floats value) { return _mm256_cvtps_epi32(value); }
  static Ints Within(Ints value, std::int32_t low, std::int32_t high) {
    return _mm256_min_epi32(_mm256_max_epi32(value, EachInt(low)), EachInt(high));
  }
  /// The greater of a number that is not negative and of the absolute value of another.
  static Floats Farther(Floats most, Floats value) {
    return _mm256_max_ps(most, _mm256_andnot_ps(EachFloat(-0.0F), value));
  }
  static bool AnyAbove(Floats value, float bound) {
    return _mm256_movemask_ps(_mm256_cmp_ps(value, EachFloat(bound), _CMP_GT_OQ)) != 0;
  }
  static void StoreBytes(void* to, const Ints (&values)[2], bool is_signed) {
    const Shorts both = _mm256_permute4x64_epi64(_mm256_packs_epi32(values[0], values[1]), 0xD8);
    const __m128i low = _mm256_castsi256_si128(both), high = _mm256_extracti128_si256(both, 1);
    _mm_storeu_si128(static_cast<__m128i*>(to),
                     is_signed ? _mm_packs_epi16(low, high) : _mm_packus_epi16(low, high));
  }
  /// Both rows may be the same.
  static void LookUp(const std::uint8_t* table, std::uint8_t* one, std::uint8_t* other) {
    auto *low = reinterpret_cast<__m128i*>(one), *high = reinterpret_cast<__m128i*>(other);
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                                  _mm_loadu_si128(high), 1);
    const __m256i place = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
    // Bits 4 to 7, each at the top of its byte.
    const __m256i bits[] = {_mm256_slli_epi16(bytes, 3), _mm256_slli_epi16(bytes, 2),
                            _mm256_slli_epi16(bytes, 1), bytes};
    const __m256i found = Entry<4>(table, place, bits);
    _mm_storeu_si128(low, _mm256_castsi256_si128(found));
    _mm_storeu_si128(high, _mm256_extracti128_si256(found, 1));
  }
  /// Entries of a table of 16 * 2^kBits bytes.
  template <int kBits>
  static inline __attribute__((always_inline)) __m256i Entry(const std::uint8_t* table,
                                                             __m256i place, const __m256i* bits) {
    if constexpr (kBits == 0) {
      const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(row), place);
    } else {
      const __m256i lower = Entry<kBits - 1>(table, place, bits);
      const __m256i upper = Entry<kBits - 1>(table + (8 << kBits), place, bits);
      return _mm256_blendv_epi8(lower, upper, bits[kBits - 1]);
    }
  }
};

#include "kernels/integers/loops.h"

}  // namespace avx2

}  // namespace

const Functions kAvx2 = avx2::kFunctions;

void AddOuterAvx2(const std::int32_t* numbers, const std::int32_t* factors, int rows,
                  std::int32_t* sums) {
  using Isa = avx2::Isa;
  for (int r = 0; r < rows; ++r) {
    const __m256i number = _mm256_set1_epi32(numbers[r]);
    for (int k = 0; k < kColumns; k += Isa::kLanes, sums += Isa::kLanes) {
      const __m256i product = _mm256_mullo_epi32(number, Isa::LoadInts(factors + k));
      Isa::StoreInts(sums, Isa::Add(Isa::LoadInts(sums), product));
    }
  }
}

}  // namespace tvm_sched::integers

#pragma GCC pop_options
#endif
