// What a family of devices must be able to do. The executor decides when and in which order; a
// backend does the work and says when it began and ended. One folder holds one backend.
#ifndef TVM_SCHED_RUNTIME_BACKEND_H_
#define TVM_SCHED_RUNTIME_BACKEND_H_

#include <atomic>
#include <functional>
#include <memory>

#include "runtime/units.h"

namespace tvm_sched::runtime {

/// A kernel with its tensors bound: called on its queue's thread, once in a run.
using Kernel = std::function<void()>;

/// Begin and end, counted from the start of the run.
struct Interval {
  Nanoseconds start{0};
  Nanoseconds end{0};
};

/// What the steps of one run share.
struct RunContext {
  Clock::time_point began;
  /// Set when the run is given up: a backend that waits must look at it now and then.
  std::atomic<bool> stopped{false};
  /// Whether a backend on real devices has to read the clock for each step.
  bool timed = true;

  Nanoseconds Now() const { return Clock::now() - began; }
};

/// What the plan says of a step, and when its predecessors ended.
struct Timing {
  Nanoseconds ready{0};
  Nanoseconds duration{0};
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// Memory for one device's arena, aligned to kAlignment and freed with the last reference.
  virtual std::shared_ptr<std::byte> Allocate(Bytes size) = 0;

  /// Called on each queue's thread at the start of a run.
  virtual void EnterQueue() {}

  /// Run a kernel; `kernel` is empty where the executor was given none (emulation without values).
  virtual Interval Launch(const Kernel& kernel, const Timing& timing, const RunContext& run) = 0;

  /// Move bytes between two devices' memories; pointers are null where there are no values.
  virtual Interval Copy(void* to, const void* from, Bytes size, const Timing& timing,
                        const RunContext& run) = 0;

  /// Keep the queue busy as the step says, moving nothing.
  virtual Interval Occupy(const Timing& timing, const RunContext& run) = 0;

  /// How many times slower than the plan's time this backend's clock runs.
  virtual double TimeScale() const { return 1.0; }
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_BACKEND_H_
