// The object "tvm_sched.PartialSchedule": a schedule under construction, for Python schedulers.
#ifndef TVM_SCHED_FFI_PARTIAL_SCHEDULE_H_
#define TVM_SCHED_FFI_PARTIAL_SCHEDULE_H_

#include <tvm/ffi/tvm_ffi.h>

#include "problem.h"
#include "search/partial_schedule.h"

namespace tvm_sched {

/*! \brief "tvm_sched.Extension": how one more operator could run on a device. */
class ExtensionObj : public tvm::ffi::Object {
 public:
  int64_t end_ns = 0;
  /*! \brief The moves before it: rows of tensor, source, device. */
  tvm::ffi::Tensor moves;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.Extension", ExtensionObj, tvm::ffi::Object);
};

/*! \brief `search::PartialSchedule` with its problem. */
class PartialScheduleObj : public tvm::ffi::Object {
 public:
  using Tensor = tvm::ffi::Tensor;

  PartialScheduleObj(const ProblemObj* problem, double memory_scale);

  // ---- growing

  /*! \brief Appends an operator whose inputs are there; its end in nanoseconds. */
  int64_t AppendRun(int64_t op, int64_t device, bool direct);
  /*! \brief Appends the move of a tensor; its end in nanoseconds. */
  int64_t AppendMove(int64_t tensor, int64_t source, int64_t device);
  /*! \brief None where the operator cannot run there, or memory does not suffice. */
  tvm::ffi::Optional<tvm::ffi::Arc<ExtensionObj>> FindExtension(int64_t op, int64_t device,
                                                                bool direct);
  /*! \brief Whether the tensor is at its source and not yet at its device. */
  bool CanMove(int64_t tensor, int64_t source, int64_t device) const;
  /*! \brief Bytes that the device lacks for an operator whose host tensors are loaded. */
  int64_t Shortfall(int64_t op, int64_t device, bool direct);

  // ---- what is known so far

  /*! \brief When a tensor is on a device; -1 where it was not brought. */
  int64_t At(int64_t tensor, int64_t device) const;
  /*! \brief Devices to which a tensor was brought, in the order in which it got there. */
  Tensor Holders(int64_t tensor) const;
  Tensor DeviceFree() const;
  Tensor ChannelFree() const;
  /*! \brief Device of each operator, or -1. */
  Tensor Placed() const;
  /*! \brief Rows of kind, item, source, device. */
  Tensor Events() const;
  Tensor Starts() const;
  Tensor Ends() const;
  int64_t LatencyNs() const { return state_.latency().count; }
  bool Fits() const { return state_.Fits(); }
  /*! \brief The schedule as a `ScheduleObj`, in the order of the events. */
  tvm::ffi::Arc<ScheduleObj> Schedule() const;
  /*! \brief Neighbours through which parameters may come to a device. */
  Tensor Transits(int64_t device) const;

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
