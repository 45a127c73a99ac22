// The object "tvm_sched.PartialSchedule": a schedule under construction, for Python schedulers.
#ifndef TVM_SCHED_FFI_PARTIAL_SCHEDULE_H_
#define TVM_SCHED_FFI_PARTIAL_SCHEDULE_H_

#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>

#include "ffi/problem.h"
#include "search/partial_schedule.h"

namespace tvm_sched {

/// "tvm_sched.Extension": how one more operator could run on a device.
class ExtensionObj : public tvm::ffi::Object {
 public:
  std::int64_t end_ns = 0;
  /// The moves before it: rows of tensor, source, device.
  tvm::ffi::Tensor moves;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.Extension", ExtensionObj, tvm::ffi::Object);
};

/// `search::PartialSchedule` with its problem.
class PartialScheduleObj : public tvm::ffi::Object {
 public:
  using Tensor = tvm::ffi::Tensor;

  PartialScheduleObj(const ProblemObj* problem, double memory_scale);

  // ---- growing

  /// Appends an operator whose inputs are there; its end in nanoseconds.
  std::int64_t AppendRun(std::int64_t op, std::int64_t device, bool direct);
  /// Appends the move of a tensor; its end in nanoseconds.
  std::int64_t AppendMove(std::int64_t tensor, std::int64_t source, std::int64_t device);
  /// None where the operator cannot run there, or memory does not suffice.
  tvm::ffi::Optional<tvm::ffi::Arc<ExtensionObj>> FindExtension(std::int64_t op,
                                                                std::int64_t device, bool direct);
  /// Whether the tensor is at its source and not yet at its device.
  bool CanMove(std::int64_t tensor, std::int64_t source, std::int64_t device) const;
  /// Bytes that the device lacks for an operator whose host tensors are loaded.
  std::int64_t Shortfall(std::int64_t op, std::int64_t device, bool direct);

  // ---- what is known so far

  /// When a tensor is on a device; -1 where it was not brought.
  std::int64_t At(std::int64_t tensor, std::int64_t device) const;
  /// Devices to which a tensor was brought, in the order in which it got there.
  Tensor Holders(std::int64_t tensor) const;
  Tensor DeviceFree() const;
  Tensor ChannelFree() const;
  /// Device of each operator, or -1.
  Tensor Placed() const;
  /// Rows of kind, item, source, device.
  Tensor Events() const;
  Tensor Starts() const;
  Tensor Ends() const;
  std::int64_t LatencyNs() const { return state_.latency().count; }
  bool Fits() const { return state_.Fits(); }
  /// The schedule as a `ScheduleObj`, in the order of the events.
  tvm::ffi::Arc<ScheduleObj> Schedule() const;
  /// Neighbours through which parameters may come to a device.
  Tensor Transits(std::int64_t device) const;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.PartialSchedule", PartialScheduleObj,
                                    tvm::ffi::Object);

 private:
  const tvm::ffi::ObjectRef problem_;  // keeps what the state looks at
  search::PartialSchedule state_;
  search::Extension extension_;
};

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_PARTIAL_SCHEDULE_H_
