// The object "tvm_sched.LocalSearch": improves a sequence of events step by step.
#ifndef TVM_SCHED_FFI_LOCAL_SEARCH_H_
#define TVM_SCHED_FFI_LOCAL_SEARCH_H_

#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>
#include <memory>

#include "ffi/arrays.h"
#include "ffi/problem.h"
#include "search/local_search.h"

namespace tvm_sched {

/// "tvm_sched.WeightedRun": a run by whose latency schedules are judged, and its share of
/// the judgement.
class WeightedRunObj : public tvm::ffi::Object {
 public:
  tvm::ffi::Arc<ProblemObj> problem{tvm::ffi::UnsafeInit{}};
  double share = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.WeightedRun", WeightedRunObj, tvm::ffi::Object);
};

/// "tvm_sched.LocalSearchSettings".
class LocalSearchSettingsObj : public tvm::ffi::Object {
 public:
  double memory_scale = 1;  // share of each device's memory that may be used
  std::int64_t seed = 0;
  std::int64_t goal_ns = 0;  // a latency at which the search ends
  /// Runs beside that of the problem itself, whose share is what they leave of 1.
  tvm::ffi::Array<tvm::ffi::Arc<WeightedRunObj>> other_runs;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.LocalSearchSettings", LocalSearchSettingsObj,
                                    tvm::ffi::Object);
};

class LocalSearchObj : public tvm::ffi::Object {
 public:
  LocalSearchObj(const ProblemObj* problem, Integers sequence,
                 const LocalSearchSettingsObj* settings);

  /// Replays about that many events more; false when it is of no use to go on.
  bool Step(std::int64_t events) { return search_->Step(events); }
  std::int64_t LatencyNs() const { return search_->latency().count; }
  /// The sequence of the best schedule, see `TableOf` in events.h.
  tvm::ffi::Tensor Best() const;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.LocalSearch", LocalSearchObj, tvm::ffi::Object);

 private:
  // These keep the instances that the search looks at.
  const tvm::ffi::ObjectRef problem_;
  const tvm::ffi::Array<tvm::ffi::Arc<WeightedRunObj>> other_runs_;
  std::unique_ptr<search::LocalSearch> search_;
};

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_LOCAL_SEARCH_H_
