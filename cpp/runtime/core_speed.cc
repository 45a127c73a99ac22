#include "runtime/core_speed.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <new>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tvm_sched::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSums = 12;      // independent, so that no product waits for the one before
constexpr int kRounds = 4096;  // of a piece: some ten microseconds
constexpr auto kArithmeticTime = std::chrono::milliseconds(8);

// Of each of three arrays, 4 MiB: as tensors between kernels, they lie in the last cache or beyond.
constexpr std::size_t kElements = std::size_t{1} << 20;
constexpr auto kTrafficTime = std::chrono::milliseconds(25);

// Multiplies and adds in registers, so that nothing but the arithmetic units limits it.
#define TVM_SCHED_PIECE(name, features, type, set, step)          \
  __attribute__((target(features))) void name() {                 \
    type sums[kSums];                                             \
    const type factor = set(0.5f), term = set(1.0f);              \
    for (type& sum : sums) sum = term;                            \
    for (int round = 0; round < kRounds; ++round) {               \
      _Pragma("GCC unroll 12") for (type& sum : sums) sum = step; \
    }                                                             \
    for (type& sum : sums) asm volatile("" ::"m"(sum));           \
  }

struct Piece {
  void (*run)();
  int lanes;
};

#if defined(__x86_64__)
TVM_SCHED_PIECE(Sse, "sse2", __m128, _mm_set1_ps, _mm_add_ps(_mm_mul_ps(sum, factor), term))
TVM_SCHED_PIECE(Avx, "avx", __m256, _mm256_set1_ps, _mm256_add_ps(_mm256_mul_ps(sum, factor), term))
TVM_SCHED_PIECE(Fma, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps(sum, factor, term))
TVM_SCHED_PIECE(Avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps(sum, factor, term))

std::vector<Piece> Pieces() {
  std::vector<Piece> pieces{{Sse, 4}};
  if (__builtin_cpu_supports("avx")) pieces.push_back({Avx, 8});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) pieces.push_back({Fma, 8});
  if (__builtin_cpu_supports("avx512f")) pieces.push_back({Avx512, 16});
  return pieces;
}
#elif defined(__aarch64__)
TVM_SCHED_PIECE(Neon, "+simd", float32x4_t, vdupq_n_f32, vfmaq_f32(term, sum, factor))

std::vector<Piece> Pieces() { return {{Neon, 4}}; }
#else
std::vector<Piece> Pieces() { return {}; }
#endif

/// The least seconds of a call, of as many as fit into some time; at least three.
template <typename Function>
double Least(Function call, Clock::duration time) {
  double least = 1e9;
  const Clock::time_point end = Clock::now() + time;
  for (int calls = 0; calls < 3 || Clock::now() < end; ++calls) {
    const Clock::time_point begin = Clock::now();
    call();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least;
}

double MeasureFlops() {
  double fastest = 0;
  for (const Piece& piece : Pieces()) {
    const double operations = 2.0 * kSums * kRounds * piece.lanes;
    fastest = std::max(fastest, operations / Least(piece.run, kArithmeticTime));
  }
  return fastest;
}

double MeasureBandwidth() {
  std::vector<float> a, b, c;
  try {
    for (std::vector<float>* array : {&a, &b, &c}) array->assign(kElements, 1.0f);
  } catch (const std::bad_alloc&) {
    return 0;
  }
  const float *const one = a.data(), *const other = b.data();
  float* const sum = c.data();
  const auto add = [&] {
#pragma GCC ivdep
    for (std::size_t k = 0; k < kElements; ++k) sum[k] = one[k] + other[k];
    asm volatile("" ::"m"(*sum) : "memory");
  };
  return 3.0 * sizeof(float) * kElements / Least(add, kTrafficTime);
}

}  // namespace

CoreSpeed MeasureCoreSpeed() { return {MeasureFlops(), MeasureBandwidth()}; }

}  // namespace tvm_sched::runtime
