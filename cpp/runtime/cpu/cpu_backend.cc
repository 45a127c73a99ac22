#include "runtime/cpu/cpu_backend.h"

#include <cstring>
#include <new>

#include "runtime/kernel_threads.h"

namespace tvm_sched::runtime {

std::shared_ptr<std::byte> CpuBackend::Allocate(int, Bytes size) {
  // At least one byte, so that an empty arena has an address of its own.
  const std::size_t count = size.count > 0 ? static_cast<std::size_t>(size.count) : 1;
  constexpr std::align_val_t kPage{4096};
  auto* memory = static_cast<std::byte*>(::operator new(count, kPage));
  return {memory, [](std::byte* p) { ::operator delete(p, std::align_val_t{4096}); }};
}

Interval CpuBackend::Launch(const Kernel& kernel, const Timing& timing, const RunContext& run) {
  const KernelThreads threads(plan_ ? plan_->steps[timing.step].cores.Of(cores_) : cores_);
  if (!run.timed) {
    kernel();
    return {timing.ready, timing.ready};
  }
  const Nanoseconds start = run.Now();
  kernel();
  return {start, run.Now()};
}

Interval CpuBackend::Copy(void* to, const void* from, Bytes size, const Timing&,
                          const RunContext& run) {
  const Nanoseconds start = run.Now();
  // An in-place copy is allowed (memmove): a plan may name one place by two buffers.
  if (size.count > 0) std::memmove(to, from, static_cast<std::size_t>(size.count));
  return {start, run.Now()};
}

Interval CpuBackend::Occupy(const Timing&, const RunContext& run) {
  // The bytes cross the bus inside the kernel that reads them; here is nothing to wait for.
  const Nanoseconds now = run.Now();
  return {now, now};
}

}  // namespace tvm_sched::runtime
