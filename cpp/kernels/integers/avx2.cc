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
  static Shorts InterleaveLow(Shorts a, Shorts b) { return _mm256_unpacklo_epi16(a, b); }
  static Shorts InterleaveHigh(Shorts a, Shorts b) { return _mm256_unpackhi_epi16(a, b); }
  static void StoreInterleaved(std::int32_t* to, Ints low, Ints high) {
    StoreInts(to, _mm256_permute2x128_si256(low, high, 0x20));
    StoreInts(to + kLanes, _mm256_permute2x128_si256(low, high, 0x31));
  }
  static Floats ToFloats(Ints value) { return _mm256_cvtepi32_ps(value); }
  /// NaN stays.
  static Floats Bounded(Floats value, float least, float greatest) {
    return _mm256_min_ps(_mm256_set1_ps(greatest), _mm256_max_ps(_mm256_set1_ps(least), value));
  }
  static Ints Rounded(Floats value) { return _mm256_cvtps_epi32(value); }
  static void StoreBytes(void* to, const Ints (&values)[2], bool is_signed) {
    const Shorts both = _mm256_permute4x64_epi64(_mm256_packs_epi32(values[0], values[1]), 0xD8);
    const __m128i low = _mm256_castsi256_si128(both), high = _mm256_extracti128_si256(both, 1);
    _mm_storeu_si128(static_cast<__m128i*>(to),
                     is_signed ? _mm_packs_epi16(low, high) : _mm_packus_epi16(low, high));
  }
};

#include "kernels/integers/loops.h"

}  // namespace avx2

}  // namespace

const Functions kAvx2 = avx2::kFunctions;

}  // namespace tvm_sched::integers

#pragma GCC pop_options
#endif
