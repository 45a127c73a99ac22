// The object "tvm_sched.Problem": a scheduling problem, made once, with its searches and queries.
#ifndef TVM_SCHED_FFI_PROBLEM_H_
#define TVM_SCHED_FFI_PROBLEM_H_

#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "ffi/arrays.h"
#include "ffi/schedule.h"
#include "search/instance.h"
#include "search/task_graph.h"
#include "simulate/problem.h"
#include "simulate/schedule.h"

namespace tvm_sched {

class LocalSearchObj;
class LocalSearchSettingsObj;
class PartialScheduleObj;

/// "tvm_sched.IosLimits": what `ios` may look at.
class IosLimitsObj : public tvm::ffi::Object {
 public:
  std::int64_t groups = 1;      // most groups of a stage
  std::int64_t group_size = 1;  // most operators of a group
  std::int64_t block = 0;       // most operators that are looked at together; 0: no limit
  std::int64_t states = 1;      // most states of a block

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.IosLimits", IosLimitsObj, tvm::ffi::Object);
};

/// "tvm_sched.IosResult": what `ios` found, or why it refused.
class IosResultObj : public tvm::ffi::Object {
 public:
  /// None where a block has more states than allowed, or no tensor can get there.
  tvm::ffi::Optional<tvm::ffi::Arc<ScheduleObj>> schedule;
  /// Whether a block has more states than allowed: then no stage was looked for.
  bool too_many_states = false;
  /// Operators of the largest block, or of the one with too many states.
  std::int64_t block_operators = 0;
  /// Of a block with too many states, about the logarithm of their number to base 2.
  std::int64_t log2_states = 0;
  /// Stages whose time was requested, each once, and the sum of these times.
  std::int64_t profiled_stages = 0;
  std::int64_t profiled_ns = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.IosResult", IosResultObj, tvm::ffi::Object);
};

/// "tvm_sched.AnnealingEffort": how long `anneal` searches, and for what.
class AnnealingEffortObj : public tvm::ffi::Object {
 public:
  std::int64_t operators = 0;  // to time in all
  std::int64_t seed = 0;
  std::int64_t goal_ns = 0;          // a latency that cannot be beaten: reached, the search ends
  std::int64_t stage_operators = 1;  // most operators of a stage; 1: no stages

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.AnnealingEffort", AnnealingEffortObj,
                                    tvm::ffi::Object);
};

/// "tvm_sched.ConstructedSequence": what `construct` made.
class ConstructedSequenceObj : public tvm::ffi::Object {
 public:
  tvm::ffi::Tensor events;  // see `SequenceOf` in events.h
  std::int64_t latency_ns = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.ConstructedSequence", ConstructedSequenceObj,
                                    tvm::ffi::Object);
};

/// A problem, for which searches find schedules.
///
/// Searches return nothing where they find no schedule. `progress` is called with parts done and
/// parts in all.
class ProblemObj : public tvm::ffi::Object {
 public:
  template <typename T>
  using Arc = tvm::ffi::Arc<T>;
  template <typename T>
  using Optional = tvm::ffi::Optional<T>;
  using Function = tvm::ffi::Function;
  using String = tvm::ffi::String;
  using Tensor = tvm::ffi::Tensor;

  explicit ProblemObj(simulate::Problem problem) : problem_(std::move(problem)) {}

  /// From arrays by name, see `ProblemOf`.
  static Arc<ProblemObj> Make(const NamedValues::Values& arrays);

  /// A schedule from its two tables, see `ScheduleObj`.
  Arc<ScheduleObj> Schedule(Integers placements, Integers transfers) const;
  /// A schedule whose launch order and channel order are those of a sequence of events, see
  /// `SequenceOf`.
  Arc<ScheduleObj> ScheduleOfSequence(Integers sequence) const;

  /// See `simulate::Concurrency`.
  double LeastPairRatio() const { return problem_.concurrency.LeastPairRatio(); }

  // ---- construction of schedules, streams and launch orders

  /// `method`: "heft" or "peft".
  Optional<Arc<ScheduleObj>> ListSchedule(const String& method) const;

  /// `mapping`: "paths" (HIOS-LP), "records" (HIOS-MR) or "records-anywhere" (HIOS-MR with
  /// the first operator on any device); a window below 2 leaves operators by themselves.
  Optional<Arc<ScheduleObj>> Hios(const String& mapping, std::int64_t window, std::int64_t streams,
                                  const Function& progress) const;

  /// \param block_of Number of each operator's block; empty: IOS finds the blocks.
  Arc<IosResultObj> Ios(std::int64_t device, const IosLimitsObj* limits, Integers block_of,
                        const Function& progress) const;

  /// Simulated annealing from operators in topological order.
  /// \param devices Device of each operator, in that order.
  /// \param joins 1 where an operator starts with the one before it, else 0.
  /// \param progress Returns the part of the time limit that is over.
  Optional<Arc<ScheduleObj>> Anneal(Integers operators, Integers devices, Integers joins,
                                    const AnnealingEffortObj* effort,
                                    const Function& progress) const;

  /// Streams of operators in launch order, which is topological. `method`: "one", "opara",
  /// "nimble", "wavefront" or "fewest".
  Tensor AllocateStreams(const String& method, Integers operators, Integers devices) const;

  /// How many waits between streams such launches need.
  std::int64_t CountSynchronizations(Integers operators, Integers devices, Integers streams) const;

  /// A launch order by the operators' demands. `method`: "depth-first", "breadth-first",
  /// "critical-path", "opara" or "opara-program".
  Tensor OrderLaunches(const String& method, Integers demand, Integers memory_bound) const;

  // ---- searches over sequences of events

  /// List scheduling, see `search::Construct`.
  /// \param allowed 0 or 1 for each choice and device.
  /// \param direct 0 or 1 for each choice: whether direct host access is allowed, too.
  /// \param copy_percent By choice: the weight of copies, in percent of their time.
  /// \param choice The choice of each operator.
  /// \param home See `search::Growth`; no elements: no parameter has one.
  /// \param turn See `search::ListSchedule`; no elements: operators go by rank.
  Optional<Arc<ConstructedSequenceObj>> Construct(Integers allowed, Integers direct,
                                                  Integers copy_percent, Integers choice,
                                                  double memory_scale, Integers home,
                                                  Integers turn) const;

  /// A local search from the sequence of a whole schedule.
  Arc<LocalSearchObj> Improve(Integers sequence, const LocalSearchSettingsObj* settings) const;

  /// A schedule without events, which may use this share of each device's memory.
  Arc<PartialScheduleObj> PartialSchedule(double memory_scale) const;

  const simulate::Problem& problem() const { return problem_; }
  /// The problem as searches over operators see it, made once.
  const search::TaskGraph& Graph() const;
  /// The problem as searches over events see it, made once.
  const search::Instance& EventInstance() const;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.Problem", ProblemObj, tvm::ffi::Object);

 private:
  /// The schedule as an object, where it has all operators.
  Optional<Arc<ScheduleObj>> Complete(simulate::Schedule schedule) const;

  const simulate::Problem problem_;
  mutable std::once_flag graph_made_, instance_made_;
  mutable std::unique_ptr<search::TaskGraph> graph_;
  mutable std::unique_ptr<search::Instance> instance_;
};

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_PROBLEM_H_
