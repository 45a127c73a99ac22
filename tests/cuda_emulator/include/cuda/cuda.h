// In place of NVIDIA's cuda.h, of which TVM's kernels use nothing that is emulated.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_CUDA_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_CUDA_H_
#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_CUDA_H_
