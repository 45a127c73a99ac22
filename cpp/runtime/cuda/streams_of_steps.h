// Where each step of a plan happens: on which stream, and between which devices.
#ifndef TVM_SCHED_RUNTIME_CUDA_STREAMS_OF_STEPS_H_
#define TVM_SCHED_RUNTIME_CUDA_STREAMS_OF_STEPS_H_

#include <vector>

#include "runtime/plan.h"

namespace tvm_sched::runtime::cuda {

inline constexpr int kHostMemory = -1;  // as Plan::queue_devices says that there is none

struct StepRoute {
  int queue = 0;
  int stream = 0;          // index into StepRoutes::streams
  int from = kHostMemory;  // devices that a copy reads and writes
  int to = kHostMemory;
};

/// A stream belongs to one GPU, while a queue of copies may serve several: it has a stream on each.
struct StreamKey {
  int queue;
  int device;  // the first device of the stream's GPU, as the plan counts
  bool copies;
};

struct StepRoutes {
  std::vector<StepRoute> steps;
  std::vector<StreamKey> streams;
};

/// `gpus`: of each of the plan's devices. A kernel runs on the device whose arena it writes or
/// reads; a copy is issued by the device that receives it, or by the one that sends to the host.
/// Throws std::invalid_argument for a kernel that touches no device or several.
StepRoutes MakeStepRoutes(const Plan& plan, const std::vector<int>& gpus);

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_STREAMS_OF_STEPS_H_
