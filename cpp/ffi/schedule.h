// The object "tvm_sched.Schedule": a schedule on its problem, made once, with all its queries.
#ifndef TVM_SCHED_FFI_SCHEDULE_H_
#define TVM_SCHED_FFI_SCHEDULE_H_

#include <tvm/ffi/tvm_ffi.h>

#include <memory>
#include <mutex>
#include <vector>

#include "problem.h"
#include "simulate/memory.h"
#include "simulate/simulate.h"

namespace tvm_sched {

/*!
 * \brief A schedule in the integers of its problem; it is simulated once, when first asked.
 *
 * Python's half is `NativeSchedule` in python/tvm_sched/schedule/native.py, with the same names.
 */
class ScheduleObj : public tvm::ffi::Object {
 public:
  using Tensor = tvm::ffi::Tensor;
  using TensorView = tvm::ffi::TensorView;

  ScheduleObj(const ProblemObj* problem, simulate::Schedule schedule);
  /*! \brief From tables of rows operator, device, direct, stream, stage, and of rows kind, item,
   * source, device, evict. */
  ScheduleObj(const ProblemObj* problem, TensorView placements, TensorView transfers);
  /*! \brief From rows of kind, item, source, device: launch order and channel order are theirs. */
  ScheduleObj(const ProblemObj* problem, TensorView sequence);

  // ---- the schedule itself, in the tables and rows of the constructors

  Tensor Placements() const;
  Tensor Transfers() const;

  // ---- what the simulator says of it

  /*! \brief Fills `times` (starts, then ends) and `peak` (by device); returns the latency in
   * nanoseconds. */
  int64_t Simulate(TensorView times, TensorView peak) const;
  /*! \brief A list for each broken rule: rule, operator, tensor, device, other, then the events of
   * a cycle. */
  tvm::ffi::Array<tvm::ffi::Array<int64_t>> Violations(int64_t limit) const;
  /*! \brief Rows of tensor, device, begin, end: what lies where, from when to when. */
  Tensor Holdings() const;
  /*! \brief Rows of device, time, bytes held from then on; by device, then by time. */
  Tensor MemoryProfile() const;
  /*! \brief By placement: threads that compute it where its device has threads, else 0. */
  Tensor Threads() const;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.Schedule", ScheduleObj, tvm::ffi::Object);

 private:
  /*! \brief The simulation, with all violations. */
  const simulate::Simulation& Simulation() const;
  /*! \brief The same; an error where a rule is broken. */
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
