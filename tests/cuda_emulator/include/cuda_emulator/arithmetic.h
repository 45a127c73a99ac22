// Functions of CUDA that NVIDIA's headers declare for GPUs only, with the roundings of a GPU where
// these are documented: half and bfloat16 functions round once, from float.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_ARITHMETIC_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_ARITHMETIC_H_

#include <cmath>

#define CUDA_EMULATOR_UNARY(name, ...)         \
  inline __half name(__half a) {               \
    const float x = __half2float(a);           \
    return __float2half(__VA_ARGS__);          \
  }                                            \
  inline __nv_bfloat16 name(__nv_bfloat16 a) { \
    const float x = __bfloat162float(a);       \
    return __float2bfloat16(__VA_ARGS__);      \
  }

CUDA_EMULATOR_UNARY(hexp, std::exp(x))
CUDA_EMULATOR_UNARY(hexp2, std::exp2(x))
CUDA_EMULATOR_UNARY(hexp10, std::pow(10.0f, x))
CUDA_EMULATOR_UNARY(hlog, std::log(x))
CUDA_EMULATOR_UNARY(hlog2, std::log2(x))
CUDA_EMULATOR_UNARY(hlog10, std::log10(x))
CUDA_EMULATOR_UNARY(hsqrt, std::sqrt(x))
CUDA_EMULATOR_UNARY(hrsqrt, 1.0f / std::sqrt(x))
CUDA_EMULATOR_UNARY(hrcp, 1.0f / x)
CUDA_EMULATOR_UNARY(hsin, std::sin(x))
CUDA_EMULATOR_UNARY(hcos, std::cos(x))
CUDA_EMULATOR_UNARY(htanh, std::tanh(x))
CUDA_EMULATOR_UNARY(htanh_approx, std::tanh(x))
CUDA_EMULATOR_UNARY(hceil, std::ceil(x))
CUDA_EMULATOR_UNARY(hfloor, std::floor(x))
CUDA_EMULATOR_UNARY(hrint, std::nearbyint(x))
CUDA_EMULATOR_UNARY(htrunc, std::trunc(x))
#undef CUDA_EMULATOR_UNARY

// A product of two halves is exact in double, and so is nearly every sum with a third.
inline __half __hfma(__half a, __half b, __half c) {
  return __double2half(double(__half2float(a)) * __half2float(b) + __half2float(c));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __double2bfloat16(double(__bfloat162float(a)) * __bfloat162float(b) + __bfloat162float(c));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __halves2bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}

inline float __expf(float x) { return std::exp(x); }
inline float __exp2f(float x) { return std::exp2(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }
inline float __tanhf(float x) { return std::tanh(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return 1 / std::sqrt(x); }
inline float __saturatef(float x) { return x >= 1 ? 1.0f : x > 0 ? x : 0.0f; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }

inline int __float_as_int(float x) {
  int y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline unsigned __float_as_uint(float x) { return static_cast<unsigned>(__float_as_int(x)); }
inline float __uint_as_float(unsigned x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline float __int_as_float(int x) { return __uint_as_float(static_cast<unsigned>(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (std::uint64_t{x} * y) >> 32; }

using std::isfinite;
using std::isinf;
using std::isnan;

// CUDA has these for all types of numbers, and takes the larger type of the two.
#define CUDA_EMULATOR_EXTREMES(T)                  \
  inline T max(T a, T b) { return a > b ? a : b; } \
  inline T min(T a, T b) { return a < b ? a : b; }
CUDA_EMULATOR_EXTREMES(int)
CUDA_EMULATOR_EXTREMES(unsigned)
CUDA_EMULATOR_EXTREMES(long)
CUDA_EMULATOR_EXTREMES(unsigned long)
CUDA_EMULATOR_EXTREMES(long long)
CUDA_EMULATOR_EXTREMES(unsigned long long)
#undef CUDA_EMULATOR_EXTREMES
inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }

template <class T>
T __ldg(const T* address) {
  return *address;
}

// Streams run on threads of the host, so these are atomic there, too.
namespace cuda_emulator {

template <class T, class F>
T Atomically(T* address, F change) {
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  auto* bits = reinterpret_cast<Bits*>(address);
  Bits before = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (true) {
    T value;
    std::memcpy(&value, &before, sizeof(T));
    const T changed = change(value);
    Bits after;
    std::memcpy(&after, &changed, sizeof(T));
    if (__atomic_compare_exchange_n(bits, &before, after, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_RELAXED)) {
      return value;
    }
  }
}

template <class T>
struct Same {
  using Type = T;
};

}  // namespace cuda_emulator

#define CUDA_EMULATOR_ATOMIC(name, ...)                                               \
  template <class T>                                                                  \
  T name(T* address, typename cuda_emulator::Same<T>::Type b) {                       \
    return cuda_emulator::Atomically(address, [b](T a) -> T { return __VA_ARGS__; }); \
  }
CUDA_EMULATOR_ATOMIC(atomicAdd, a + b)
CUDA_EMULATOR_ATOMIC(atomicSub, a - b)
CUDA_EMULATOR_ATOMIC(atomicMax, a > b ? a : b)
CUDA_EMULATOR_ATOMIC(atomicMin, a < b ? a : b)
CUDA_EMULATOR_ATOMIC(atomicAnd, a& b)
CUDA_EMULATOR_ATOMIC(atomicOr, a | b)
CUDA_EMULATOR_ATOMIC(atomicXor, a ^ b)
CUDA_EMULATOR_ATOMIC(atomicExch, b)
#undef CUDA_EMULATOR_ATOMIC

template <class T>
T atomicCAS(T* address, typename cuda_emulator::Same<T>::Type expected,
            typename cuda_emulator::Same<T>::Type value) {
  return cuda_emulator::Atomically(address, [=](T a) { return a == expected ? value : a; });
}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() {}
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_ARITHMETIC_H_
