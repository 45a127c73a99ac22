// In place of NVIDIA's header of the same name: products of four bytes, summed up.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_SM_61_INTRINSICS_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_SM_61_INTRINSICS_H_

#include "cuda_emulator/ptx.h"

inline int __dp4a(int a, int b, int c) {
  return cuda_emulator::SumOfProducts<signed char, signed char>(a, b, c);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return static_cast<unsigned>(cuda_emulator::SumOfProducts<unsigned char, unsigned char>(a, b, c));
}

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_SM_61_INTRINSICS_H_
