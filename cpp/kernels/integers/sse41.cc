#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/integers/functions.h"

#pragma GCC push_options
#pragma GCC target("sse4.1")

namespace tvm_sched::integers {

namespace {

namespace sse41 {

struct Isa {
  using Ints = __m128i;    // of 32 bits
  using Shorts = __m128i;  // of 16 bits
  using Floats = __m128;
  static constexpr int kLanes = 4, kRows = 2;
  static constexpr bool kSaturates = true;  // StoreBytes

  static Ints Zeros() { return _mm_setzero_si128(); }
  static Ints EachInt(std::int32_t value) { return _mm_set1_epi32(value); }
  static Floats EachFloat(float value) { return _mm_set1_ps(value); }
  static Shorts EachShort(std::int16_t value) { return _mm_set1_epi16(value); }
  static Shorts EachPair(const std::int16_t* pair) {
    std::int32_t both;
    __builtin_memcpy(&both, pair, sizeof both);
    return _mm_set1_epi32(both);
  }
  static Shorts LoadShorts(const std::int8_t* from) {
    return _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Shorts LoadShorts(const std::uint8_t* from) {
    return _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Shorts LoadShorts(const std::int16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void StoreShorts(std::int16_t* to, Shorts value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
  }
  static Ints LoadInts(const std::int32_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void StoreInts(std::int32_t* to, Ints value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
  }
  static Floats LoadFloats(const float* from) { return _mm_loadu_ps(from); }
  static void StoreFloats(float* to, Floats value) { _mm_storeu_ps(to, value); }

  static Shorts Subtract(Shorts a, Shorts b) { return _mm_sub_epi16(a, b); }
  static Ints Add(Ints a, Ints b) { return _mm_add_epi32(a, b); }
  static Ints Multiply(Shorts a, Shorts b) { return _mm_madd_epi16(a, b); }
  static Floats ToFloats(Ints value) { return _mm_cvtepi32_ps(value); }
  /// NaN stays.
  static Floats Bounded(Floats value, float least, float greatest) {
    return _mm_min_ps(_mm_set1_ps(greatest), _mm_max_ps(_mm_set1_ps(least), value));
  }
  static Floats Quotient(Floats value, const Epilogue& epilogue, int) {
    return value / EachFloat(epilogue.divisor);
  }
  static Ints Rounded(Floats value) { return _mm_cvtps_epi32(value); }
  static Ints Within(Ints value, std::int32_t low, std::int32_t high) {
    return _mm_min_epi32(_mm_max_epi32(value, EachInt(low)), EachInt(high));
  }
  /// The greater of a number that is not negative and of the absolute value of another.
  static Floats Farther(Floats most, Floats value) {
    return _mm_max_ps(most, _mm_andnot_ps(EachFloat(-0.0F), value));
  }
  static bool AnyAbove(Floats value, float bound) {
    return _mm_movemask_ps(_mm_cmpgt_ps(value, EachFloat(bound))) != 0;
  }
  static void StoreBytes(void* to, const Ints (&values)[4], bool is_signed) {
    const Shorts low = _mm_packs_epi32(values[0], values[1]);
    const Shorts high = _mm_packs_epi32(values[2], values[3]);
    _mm_storeu_si128(static_cast<__m128i*>(to),
                     is_signed ? _mm_packs_epi16(low, high) : _mm_packus_epi16(low, high));
  }
  /// Both rows may be the same.
  static void LookUp(const std::uint8_t* table, std::uint8_t* one, std::uint8_t* other) {
    for (int k = 0; k < kColumns; ++k) {
      const std::uint8_t first = table[one[k]], second = table[other[k]];
      one[k] = first, other[k] = second;
    }
  }
};

#include "kernels/integers/loops.h"

}  // namespace sse41

}  // namespace

const Functions kSse41 = sse41::kFunctions;

}  // namespace tvm_sched::integers

#pragma GCC pop_options
#endif
