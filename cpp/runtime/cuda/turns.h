// Runs that are on GPUs at once, in an order: the kernels of each begin when those of the run
// before have ended, so that only copies of the others lie beside them.
#ifndef TVM_SCHED_RUNTIME_CUDA_TURNS_H_
#define TVM_SCHED_RUNTIME_CUDA_TURNS_H_

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/cuda/handles.h"

namespace tvm_sched::runtime::cuda {

/// Whose turn it is to issue, and where the kernels of the run before end. Several backends on the
/// same GPUs share one.
class Turns {
 public:
  /// Events behind the last kernels of a run, by GPU.
  using Ends = std::map<int, std::vector<std::shared_ptr<EventHandle>>>;

  /// From here to Pass only the caller issues. Both on one thread.
  const Ends& Take() {
    mutex_.lock();
    return ends_;
  }
  /// Let the next run issue its steps, whose kernels follow these ends; those of GPUs that this run
  /// did not use stay as they are.
  void Pass(Ends ends) {
    for (auto& [gpu, events] : ends) ends_[gpu] = std::move(events);
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
  Ends ends_;
};

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_TURNS_H_
