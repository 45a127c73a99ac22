// Limits of the fake GPUs.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_DEVICES_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_DEVICES_H_

namespace fake_cuda {

// CUdevice_attribute
constexpr int kMaxThreadsPerBlock = 1, kMaxBlockX = 2, kMaxGridX = 5, kSharedPerBlock = 8;
constexpr int kSharedPerBlockOptIn = 97;

/// 90 for sm_90.
int ArchitectureOf(int device);

/// -1 for attributes that nobody has asked for yet.
int AttributeOf(int attribute, int device);

}  // namespace fake_cuda

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_DEVICES_H_
