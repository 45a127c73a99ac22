// Logical devices on the cores of this machine: kernels run, copies move bytes.
#ifndef TVM_SCHED_RUNTIME_CPU_CPU_BACKEND_H_
#define TVM_SCHED_RUNTIME_CPU_CPU_BACKEND_H_

#include "runtime/backend.h"

namespace tvm_sched::runtime {

class CpuBackend final : public Backend {
 public:
  std::shared_ptr<std::byte> Allocate(int device, Bytes size) override;
  int Workers() const override;
  Interval Launch(const Kernel& kernel, const Timing& timing, const RunContext& run) override;
  Interval Copy(void* to, const void* from, Bytes size, const Timing& timing,
                const RunContext& run) override;
  Interval Occupy(const Timing& timing, const RunContext& run) override;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_CPU_CPU_BACKEND_H_
