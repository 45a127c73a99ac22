// PTX instructions as functions: ptx.py calls the one whose name is the instruction's, with `_` for
// `.` and `::`.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_PTX_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_PTX_H_

#include <tuple>

#include "cuda_emulator/image.h"

namespace cuda_emulator {

template <class A, class B>
int SumOfProducts(unsigned a, unsigned b, unsigned c) {
  for (int shift = 0; shift < 32; shift += 8) c += static_cast<A>(a >> shift) * static_cast<B>(b >> shift);
  return static_cast<int>(c);
}

}  // namespace cuda_emulator

namespace cuda_emulator::ptx {

inline void dp4a_u32_s32(int, int& d, unsigned a, int b, int c) {
  d = SumOfProducts<unsigned char, signed char>(a, b, c);
}
inline void dp4a_s32_u32(int, int& d, int a, unsigned b, int c) {
  d = SumOfProducts<signed char, unsigned char>(a, b, c);
}

inline void Unknown(const char* text) {
  char message[256];
  std::snprintf(message, sizeof(message), "PTX that the emulator does not know: %.200s", text);
  TheDevice().fault(kLaunchFailed, message);
}

}  // namespace cuda_emulator::ptx

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_PTX_H_
