// The interface of a kind of devices. The executor decides when and in which order; a
// backend does the work and says when it began and ended. One folder holds one backend.
#ifndef TVM_SCHED_RUNTIME_BACKEND_H_
#define TVM_SCHED_RUNTIME_BACKEND_H_

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

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
  /// By step, whether it is left out; or empty.
  std::vector<bool> skipped{};

  Nanoseconds Now() const { return Clock::now() - began; }
};

/// What the plan says of a step, and when its predecessors ended.
struct Timing {
  Nanoseconds ready{0};
  Nanoseconds duration{0};
  int step = -1;
};

/// What a backend has whose devices run queues by themselves: the host only issues steps, each
/// after those that it waits for have been issued, and the devices wait for each other's events.
/// A step of such a backend has ended when its event has.
///
/// Within one queue, calls follow each other; those of different queues come from any thread.
class Streams {
 public:
  virtual ~Streams() = default;

  /// Before a timed run begins, while nothing runs: read the devices' clocks beside the host's.
  virtual void ReadClocks() = 0;
  /// Before the first step of a run, and after its last one was issued or the run was given up. On
  /// one thread; Issued is called also where Begin failed.
  virtual void Begin(const RunContext& run) = 0;
  virtual void Issued() = 0;
  /// What `step` issues begins only after `earlier` has ended. Called before `step` is issued.
  virtual void Wait(int step, int earlier) = 0;
  /// Mark where `step` ends. Called after it was issued, if anybody looks at its end.
  virtual void Record(int step) = 0;
  /// Whether all that was issued has ended. Throws where a device failed.
  virtual bool Finished() = 0;
  /// Wait until all that was issued has ended, whatever fails: a run that failed leaves nothing
  /// behind that uses its memory.
  virtual void Drain() noexcept = 0;
  /// Sleep until all that was issued has ended, or for `limit` at most.
  virtual void Sleep(Nanoseconds limit) = 0;
  /// Whether a recorded step has ended.
  virtual bool Ended(int step) = 0;
  /// When a recorded step of a finished, timed run began and ended.
  virtual Interval TimesOf(int step) = 0;

  /// From here to EndCapture steps are noted rather than done, all on one thread. What EndCapture
  /// returns does them all at each call, as a step of the host does: it issues and returns.
  virtual void BeginCapture() = 0;
  virtual std::function<void()> EndCapture() = 0;
  /// Forget a capture that failed.
  virtual void AbandonCapture() noexcept = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// Memory for the arena of one of the plan's devices, aligned to kAlignment and freed with the
  /// last reference.
  virtual std::shared_ptr<std::byte> Allocate(int device, Bytes size) = 0;

  /// The queues of a backend that waits on events; null where a step has ended when its call
  /// returns.
  virtual Streams* streams() { return nullptr; }

  /// How many steps can usefully be done, or issued, at once; 0: one of each queue.
  virtual int Workers() const { return 0; }

  /// Called on each thread at the start of a run.
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
