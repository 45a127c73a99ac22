// Types for times and sizes, so that one is never taken for the other.
#ifndef TVM_SCHED_RUNTIME_UNITS_H_
#define TVM_SCHED_RUNTIME_UNITS_H_

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace tvm_sched::runtime {

/// A span of time, or a point in time counted from the start of a run.
using Nanoseconds = std::chrono::nanoseconds;

/// The clock of the executor: monotonic, and the one that clock_nanosleep waits on.
using Clock = std::chrono::steady_clock;

/// A size in memory or an offset into it.
struct Bytes {
  std::int64_t count = 0;

  friend auto operator<=>(const Bytes&, const Bytes&) = default;
  friend Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
};

/// Kernels that TVM compiles assume that their tensors start at a multiple of this.
inline constexpr std::size_t kAlignment = 64;

inline bool IsAligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_UNITS_H_
