// The object "tvm_sched.Schedule": a schedule on its problem, made once, with all its queries.
#ifndef TVM_SCHED_FFI_SCHEDULE_H_
#define TVM_SCHED_FFI_SCHEDULE_H_

#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ffi/arrays.h"
#include "simulate/device_memory.h"
#include "simulate/schedule.h"
#include "simulate/simulate.h"

namespace tvm_sched {

class ProblemObj;

/// "tvm_sched.Simulation": when a schedule's events run.
class SimulationObj : public tvm::ffi::Object {
 public:
  tvm::ffi::Tensor start_ns, end_ns;  // of each event: placements, then transfers
  tvm::ffi::Tensor peak_memory;       // most bytes that each device holds at once
  std::int64_t latency_ns = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.Simulation", SimulationObj, tvm::ffi::Object);
};

/// "tvm_sched.BrokenRule": `simulate::Violation`; indices that say nothing are -1.
class BrokenRuleObj : public tvm::ffi::Object {
 public:
  tvm::ffi::String rule;  // its name
  std::int64_t op = -1, tensor = -1, device = -1;
  std::int64_t other = -1;  // see `simulate::Violation`
  tvm::ffi::Array<std::int64_t> cycle;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.BrokenRule", BrokenRuleObj, tvm::ffi::Object);
};

/// A schedule in the integers of its problem; it is simulated once, when first asked.
class ScheduleObj : public tvm::ffi::Object {
 public:
  using Tensor = tvm::ffi::Tensor;

  ScheduleObj(const ProblemObj* problem, simulate::Schedule schedule);
  /// From tables of rows operator, device, direct, stream, stage, and of rows kind, item,
  /// source, device, evict.
  ScheduleObj(const ProblemObj* problem, Integers placements, Integers transfers);

  // ---- the schedule itself, in the tables of the constructor

  Tensor Placements() const;
  Tensor Transfers() const;

  // ---- what the simulator says of it

  /// ValueError where a rule is broken.
  tvm::ffi::Arc<SimulationObj> Simulate() const;
  /// Broken rules, up to `limit`.
  tvm::ffi::Array<tvm::ffi::Arc<BrokenRuleObj>> Violations(std::int64_t limit) const;
  /// Rows of tensor, device, begin, end: what lies where, from when to when.
  Tensor Holdings() const;
  /// Rows of device, time, bytes held from then on; by device, then by time.
  Tensor MemoryProfile() const;
  /// By placement: threads that compute it where its device has threads, else 0.
  Tensor Threads() const;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.Schedule", ScheduleObj, tvm::ffi::Object);

 private:
  /// The simulation, with all violations.
  const simulate::Simulation& Simulated() const;
  /// The same; an error where a rule is broken.
  const simulate::Simulation& Feasible() const;
  std::vector<simulate::Holding> FindHoldings() const;

  const tvm::ffi::ObjectRef kept_;  // the problem, as long as this lives
  const simulate::Problem& problem_;
  const simulate::Schedule schedule_;
  mutable std::once_flag simulated_;
  mutable std::unique_ptr<simulate::Simulation> simulation_;
};

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_SCHEDULE_H_
