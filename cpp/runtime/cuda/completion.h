// The host's sleep until GPUs have done what was issued.
#ifndef TVM_SCHED_RUNTIME_CUDA_COMPLETION_H_
#define TVM_SCHED_RUNTIME_CUDA_COMPLETION_H_

#include <condition_variable>
#include <mutex>
#include <vector>

#include "runtime/cuda/driver.h"
#include "runtime/units.h"

namespace tvm_sched::runtime::cuda {

/// Woken by host functions behind the last work of streams. It must outlive what was issued on
/// these streams before the last Sleep.
class Completion {
 public:
  /// Sleep until all that `streams` were given has ended, `limit` at most. After a device has
  /// failed nobody wakes the sleeper before that.
  void Sleep(const std::vector<Stream>& streams, Nanoseconds limit);

 private:
  static void Ended(void* self);

  std::mutex mutex_;
  std::condition_variable ended_;
  int pending_ = 0;  // host functions that have not been called
};

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_COMPLETION_H_
