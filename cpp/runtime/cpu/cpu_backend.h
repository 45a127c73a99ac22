// Logical devices on the cores of this machine: kernels run, copies move bytes.
#ifndef TVM_SCHED_RUNTIME_CPU_CPU_BACKEND_H_
#define TVM_SCHED_RUNTIME_CPU_CPU_BACKEND_H_

#include <memory>
#include <utility>

#include "runtime/backend.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

class CpuBackend final : public Backend {
 public:
  /// Kernels have their shares of the plan's cores; without a plan, all of them.
  explicit CpuBackend(std::shared_ptr<const Plan> plan = nullptr)
      : plan_(std::move(plan)),
        cores_(plan_ ? plan_->cores : Cores()),
        reads_(plan_ && plan_->ReadsFile()) {}

  std::shared_ptr<std::byte> Allocate(int device, Bytes size) override;
  /// One more where steps read the file of parameters: it sleeps while the disk works.
  int Workers() const override { return cores_ + (reads_ ? 1 : 0); }
  Interval Launch(const Kernel& kernel, const Timing& timing, const RunContext& run) override;
  Interval Copy(void* to, const void* from, Bytes size, const Timing& timing,
                const RunContext& run) override;
  Interval Occupy(const Timing& timing, const RunContext& run) override;

 private:
  std::shared_ptr<const Plan> plan_;
  int cores_;
  bool reads_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_CPU_CPU_BACKEND_H_
