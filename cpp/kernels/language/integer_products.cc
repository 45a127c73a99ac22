#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#ifdef __x86_64__
// GCC 12's header initialises vectors that may hold anything with themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif

#include "kernels/language/products.h"
#include "kernels/onednn/vector_math.h"

namespace tvm_sched::language {

namespace {

using Function = void (*)(Format format, const QuantizedRow* rows, int count, std::int64_t groups,
                          const std::uint8_t* tile, const GroupScales& beside, float* sums);

namespace portable {

struct Isa {
  struct Sums {
    std::int32_t lanes[kColumns];
  };
  struct Bytes {
    std::int8_t bytes[4 * kColumns];
  };
  struct Floats {
    float lanes[kColumns];
  };
  static Sums Zero() { return {}; }
  static Bytes Load(const std::uint8_t* from) {
    Bytes result;
    std::memcpy(&result, from, sizeof result);
    return result;
  }
  static Bytes Low(Bytes both) {
    for (std::int8_t& byte : both.bytes) byte = static_cast<std::int8_t>(byte & 15);
    return both;
  }
  static Bytes High(Bytes both) {
    for (std::int8_t& byte : both.bytes) byte = static_cast<std::int8_t>((byte >> 4) & 15);
    return both;
  }
  static const std::int8_t* Each(const std::int8_t* four) { return four; }
  static constexpr int kShift = 0;
  static Sums DotSigned(Sums sums, const Bytes& weights, const std::int8_t* numbers) {
    for (int c = 0; c < kColumns; ++c) {
      for (int k = 0; k < 4; ++k) sums.lanes[c] += weights.bytes[4 * c + k] * numbers[k];
    }
    return sums;
  }
  static Sums DotUnsigned(Sums sums, const Bytes& weights, const std::int8_t* numbers) {
    return DotSigned(sums, weights, numbers);
  }
  template <typename Element, typename Of>
  static Floats Lanes(const Of& of, Element element) {
    Floats result;
    for (int c = 0; c < kColumns; ++c) result.lanes[c] = element(of, c);
    return result;
  }
  static Floats ToFloats(const Sums& sums) {
    return Lanes(sums, [](const Sums& s, int c) { return static_cast<float>(s.lanes[c]); });
  }
  static Floats LoadHalves(const std::uint16_t* from) {
    return Lanes(from, [](const std::uint16_t* f, int c) {
      const std::uint32_t bits = std::uint32_t{f[c]} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    });
  }
  static Floats LoadZeros(const std::uint8_t* from) {
    return Lanes(from, [](const std::uint8_t* f, int c) { return static_cast<float>(f[c]); });
  }
  static Floats EachFloat(float value) {
    return Lanes(value, [](float v, int) { return v; });
  }
  static Floats Multiply(Floats a, const Floats& b) {
    for (int c = 0; c < kColumns; ++c) a.lanes[c] *= b.lanes[c];
    return a;
  }
  static Floats Add(Floats a, const Floats& b) {
    for (int c = 0; c < kColumns; ++c) a.lanes[c] += b.lanes[c];
    return a;
  }
  static Floats Fma(const Floats& a, const Floats& b, Floats c) {
    for (int k = 0; k < kColumns; ++k) c.lanes[k] += a.lanes[k] * b.lanes[k];
    return c;
  }
  static void StoreFloats(float* to, const Floats& value) {
    std::memcpy(to, value.lanes, sizeof value.lanes);
  }
};

#include "kernels/language/integer_tiles.h"

}  // namespace portable

#ifdef __x86_64__

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace avx2 {

struct Isa {
  struct Sums {
    __m256i low, high;
  };
  using Bytes = Sums;
  struct Floats {
    __m256 low, high;
  };
  static Sums Zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Bytes Load(const std::uint8_t* from) {
    const auto* place = reinterpret_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(place), _mm256_loadu_si256(place + 1)};
  }
  static Bytes Low(Bytes both) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(both.low, mask), _mm256_and_si256(both.high, mask)};
  }
  static Bytes High(Bytes both) {
    return Low({_mm256_srli_epi16(both.low, 4), _mm256_srli_epi16(both.high, 4)});
  }
  static __m256i Each(const std::int8_t* four) {
    std::int32_t all;
    std::memcpy(&all, four, sizeof all);
    return _mm256_set1_epi32(all);
  }
  // Pairs of products of numbers from -127 to 127 are below 2^15, so nothing saturates.
  static __m256i Products(__m256i unsigned_bytes, __m256i signed_bytes) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned_bytes, signed_bytes),
                             _mm256_set1_epi16(1));
  }
  static constexpr int kShift = 0;
  static Sums DotSigned(Sums sums, Bytes weights, __m256i numbers) {
    const __m256i sizes = _mm256_abs_epi8(numbers);
    return {_mm256_add_epi32(sums.low, Products(sizes, _mm256_sign_epi8(weights.low, numbers))),
            _mm256_add_epi32(sums.high, Products(sizes, _mm256_sign_epi8(weights.high, numbers)))};
  }
  static Sums DotUnsigned(Sums sums, Bytes weights, __m256i numbers) {
    return {_mm256_add_epi32(sums.low, Products(weights.low, numbers)),
            _mm256_add_epi32(sums.high, Products(weights.high, numbers))};
  }
  static Floats ToFloats(Sums sums) {
    return {_mm256_cvtepi32_ps(sums.low), _mm256_cvtepi32_ps(sums.high)};
  }
  static __m256 Half(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static Floats LoadHalves(const std::uint16_t* from) {
    const auto* place = reinterpret_cast<const __m128i*>(from);
    return {Half(_mm_loadu_si128(place)), Half(_mm_loadu_si128(place + 1))};
  }
  static Floats LoadZeros(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return ToFloats({_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))});
  }
  static Floats EachFloat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Floats Multiply(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static Floats Add(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Floats Fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static void StoreFloats(float* to, Floats value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
  }
};

#include "kernels/language/integer_tiles.h"

}  // namespace avx2

#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")

namespace vnni {

struct Isa {
  using Sums = __m512i;
  using Bytes = __m512i;
  using Floats = __m512;
  static Sums Zero() { return _mm512_setzero_si512(); }
  static Bytes Load(const std::uint8_t* from) { return _mm512_loadu_si512(from); }
  static Bytes Low(Bytes both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
  static Bytes High(Bytes both) { return Low(_mm512_srli_epi16(both, 4)); }
  static __m512i Each(const std::int8_t* four) {
    std::int32_t all;
    std::memcpy(&all, four, sizeof all);
    return _mm512_set1_epi32(all);
  }
  // The instruction multiplies unsigned by signed bytes; 128 more makes all weights positive.
  static constexpr int kShift = 128;
  static Sums DotSigned(Sums sums, Bytes weights, __m512i numbers) {
    return _mm512_dpbusd_epi32(sums, _mm512_xor_si512(weights, _mm512_set1_epi8(-128)), numbers);
  }
  static Sums DotUnsigned(Sums sums, Bytes weights, __m512i numbers) {
    return _mm512_dpbusd_epi32(sums, weights, numbers);
  }
  static Floats ToFloats(Sums sums) { return _mm512_cvtepi32_ps(sums); }
  static Floats LoadHalves(const std::uint16_t* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static Floats LoadZeros(const std::uint8_t* from) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static Floats EachFloat(float value) { return _mm512_set1_ps(value); }
  static Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static void StoreFloats(float* to, Floats value) { _mm512_storeu_ps(to, value); }
};

#include "kernels/language/integer_tiles.h"

}  // namespace vnni

#pragma GCC pop_options

#endif

struct Version {
  const char* name;
  Function tile;
};

Version Choose() {
  const char* asked = std::getenv("TVM_SCHED_INTEGERS");
  const std::string name = asked == nullptr ? "" : asked;
#ifdef __x86_64__
  if ((name.empty() || name == "amx" || name == "vnni") &&
      __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0) {
    return {name != "vnni" && HasMatrixUnit() ? "amx" : "vnni", vnni::AnyTile};
  }
  if ((name.empty() || name == "avx2") && __builtin_cpu_supports("avx2") != 0 &&
      __builtin_cpu_supports("fma") != 0) {
    return {"avx2", avx2::AnyTile};
  }
#endif
  return {"portable", portable::AnyTile};
}

const Version& Chosen() {
  static const Version version = Choose();
  return version;
}

}  // namespace

void IntegerTile(Format format, const QuantizedRow* rows, int count, std::int64_t groups,
                 const void* tile, const GroupScales& beside, float* sums) {
  Chosen().tile(format, rows, count, groups, static_cast<const std::uint8_t*>(tile), beside, sums);
}

const char* IntegerVersion() { return Chosen().name; }

TVM_SCHED_VERSIONS void Quantize(const float* row, std::int64_t terms, std::int8_t* numbers,
                                 float* scales, std::int32_t* sums) {
  for (std::int64_t first = 0, g = 0; first < terms; first += kGroup, ++g) {
    const std::int64_t count = std::min(kGroup, terms - first);
    float largest = 0;
    for (std::int64_t k = 0; k < count; ++k) {
      const float size = std::fabs(row[first + k]);
      largest = size > largest ? size : largest;
    }
    const float factor = largest > 0 ? 127.0f / largest : 0.0f;
    std::int32_t sum = 0;
    for (std::int64_t k = 0; k < count; ++k) {
      const float scaled = row[first + k] * factor;
      // Adding 1.5 * 2^23 rounds to a whole number, halves to even.
      const auto number = static_cast<std::int32_t>((scaled + 12582912.0f) - 12582912.0f);
      numbers[first + k] = static_cast<std::int8_t>(number);
      sum += number;
    }
    for (std::int64_t k = count; k < kGroup; ++k) numbers[first + k] = 0;
    scales[g] = largest / 127.0f;
    sums[g] = sum;
  }
}

}  // namespace tvm_sched::language
