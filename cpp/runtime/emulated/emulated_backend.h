// Emulated devices: a kernel or a copy waits for the time that the plan says.
//
// Everything else is the real executor (threads, order, events), so a run shows whether the plan's
// order gives the latency that was predicted for it. Time is dilated by a scale, since waking a
// thread costs tens of microseconds while a kernel may take five.
#ifndef TVM_SCHED_RUNTIME_EMULATED_EMULATED_BACKEND_H_
#define TVM_SCHED_RUNTIME_EMULATED_EMULATED_BACKEND_H_

#include "runtime/backend.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

class EmulatedBackend final : public Backend {
 public:
  explicit EmulatedBackend(double scale) : scale_(scale) {}

  /// There are no values, so there is no memory.
  std::shared_ptr<std::byte> Allocate(int, Bytes) override { return nullptr; }
  void EnterQueue() override;
  Interval Launch(const Kernel& kernel, const Timing& timing, const RunContext& run) override;
  Interval Copy(void* to, const void* from, Bytes size, const Timing& timing,
                const RunContext& run) override;
  Interval Occupy(const Timing& timing, const RunContext& run) override;
  double TimeScale() const override { return scale_; }

 private:
  double scale_;
};

/// The default scale:
///
///     max(1, 0.5 s / L, min(0.25 ms / m, 3 s / L))
///
/// with L the plan's critical length and m the median of its steps' durations that are not zero.
/// So a run lasts half a second or more; a typical step lasts several times what waking a thread
/// costs, unless the run would then last longer than three seconds; nothing runs faster than life.
double ChooseScale(const Plan& plan);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_EMULATED_EMULATED_BACKEND_H_
