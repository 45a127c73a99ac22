// Shared by our kernels: functions compiled for several instruction sets, and the exponential.
#ifndef TVM_SCHED_KERNELS_ONEDNN_VECTOR_MATH_H_
#define TVM_SCHED_KERNELS_ONEDNN_VECTOR_MATH_H_

#include <cstdint>
#include <cstring>

// Compiled for several instruction sets; the dynamic loader takes the one of the processor.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define TVM_SCHED_VERSIONS \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TVM_SCHED_VERSIONS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TVM_SCHED_VERSIONS
#endif

namespace tvm_sched::onednn {

/// Of numbers that the compiler makes vector instructions for, on any processor.
template <typename Number, int count>
struct VectorOf {
  typedef Number Type __attribute__((vector_size(sizeof(Number) * count)));
};

/// Numbers that are added in float32; sums of several such blocks are joined in float64.
constexpr std::int64_t kSummed = 4096;

/// exp(x) for x <= 0 within 2 ulp; 0 below -87.3, NaN of NaN.
inline float Exponential(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = x * 1.44269504088896341f + kRound;
  const float whole = shifted - kRound;
  const float rest = (x - whole * 0.693145751953125f) - whole * 1.42860682030941723212e-6f;
  float value = 1.9875691500e-4f;
  value = value * rest + 1.3981999507e-3f;
  value = value * rest + 8.3334519073e-3f;
  value = value * rest + 4.1665795894e-2f;
  value = value * rest + 1.6666665459e-1f;
  value = value * rest + 5.0000001201e-1f;
  value = value * rest * rest + rest + 1.0f;
  std::int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = static_cast<std::int32_t>((static_cast<std::uint32_t>(bits) + 127u) << 23);
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -87.3f ? 0.0f : value * power;
}

/// -infinity of none; NaN are left out.
float Largest(const float* values, std::int64_t count);

/// Replace values by exp(value - largest); returns their sum.
float Exponentials(float* values, std::int64_t count, float largest);

void Scale(float* values, std::int64_t count, float factor);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_VECTOR_MATH_H_
