#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/integers/functions.h"

#pragma GCC push_options
#pragma GCC target("avx2,avxvnni")

namespace tvm_sched::integers {

namespace {

namespace avxvnni {

struct Isa {
  using Ints = __m256i;
  using Bytes = __m256i;
  static constexpr int kLanes = 8, kRows = 6, kChains = 1;

  static Ints Zeros() { return _mm256_setzero_si256(); }
  static Ints Add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  static Ints LoadInts(const std::int32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void StoreInts(std::int32_t* to, Ints value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  }
  static Bytes Load(const std::int8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Bytes Each(const std::uint8_t* four) {
    std::int32_t all;
    __builtin_memcpy(&all, four, sizeof all);
    return _mm256_set1_epi32(all);
  }
  static Ints Dot(Ints sums, Bytes numbers, Bytes weights) {
    return _mm256_dpbusd_avx_epi32(sums, numbers, weights);
  }
};

#include "kernels/integers/byte_loops.h"

}  // namespace avxvnni

}  // namespace

const ByteProducts kAvxVnni = avxvnni::kByteProducts;

}  // namespace tvm_sched::integers

#pragma GCC pop_options
#endif
