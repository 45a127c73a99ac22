// Runs one kernel's blocks on the calling thread, threads of a block as fibers, in random orders.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_BLOCK_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_BLOCK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda_emulator/image.h"
#include "fibers.h"

namespace cuda_emulator {

struct Launch {
  const Kernel* kernel = nullptr;
  Index grid, block;
  std::size_t dynamic_shared = 0;
  /// What static and dynamic shared memory of a block may be together.
  std::size_t largest_shared = 0;
  std::uint64_t seed = 0;
};

struct Fault {
  int code = 0;  // 0: none
  std::string text;
};

/// What kernels call, see image.h.
extern const Device kDevice;

/// Runs all blocks; ends at the first fault.
Fault Run(const Launch& launch, void** arguments);

}  // namespace cuda_emulator

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_BLOCK_H_
