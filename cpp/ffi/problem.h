// The object "tvm_sched.Problem": a scheduling problem, made once, with its searches and queries.
#ifndef TVM_SCHED_FFI_PROBLEM_H_
#define TVM_SCHED_FFI_PROBLEM_H_

#include <tvm/ffi/tvm_ffi.h>

#include <memory>
#include <mutex>

#include "search/list_schedule.h"
#include "search/local_search.h"
#include "search/task_graph.h"
#include "simulate/problem.h"
#include "simulate/schedule.h"

namespace tvm_sched {

/*!
 * \brief A problem, for which searches find schedules.
 *
 * Python's half is `NativeProblem` in python/tvm_sched/schedule/native.py, with the same names.
 *
 * Searches return a `ScheduleObj`, or nothing where they find none. `progress` is called with parts
 * done and parts in all.
 */
class ProblemObj : public tvm::ffi::Object {
 public:
  using TensorView = tvm::ffi::TensorView;
  /*! \brief A `ScheduleObj`. */
  using Found = tvm::ffi::Optional<tvm::ffi::ObjectRef>;
  using Function = tvm::ffi::Function;

  /*! \brief From arrays by name, as `ProblemOf` in problem.cc reads them. */
  explicit ProblemObj(const tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>& arrays);

  /*! \brief See `simulate::Concurrency`. */
  double LeastPairRatio() const { return problem_.concurrency.LeastPairRatio(); }

  // ---- construction of schedules, streams and launch orders: search.cc

  Found ListSchedule(int64_t method) const;

  /*! \brief `by_paths`: HIOS-LP, else HIOS-MR; a window below 2 leaves operators by themselves. */
  Found Hios(bool by_paths, int64_t window, const Function& progress) const;

  /*! \brief `limits`: groups, operators of a group, operators of a block, states; afterwards it
   * holds the largest block's operators and states and, where these are too many, the power of two
   * that is about as many. */
  Found Ios(int64_t device, TensorView limits, const Function& progress) const;

  /*! \brief `sequence`: rows of operator, device, whether it starts with the one before it, in
   * topological order; `effort`: operators to time, seed, goal, most operators of a stage.
   * `progress` returns the part of the time limit that is over. */
  Found Anneal(TensorView sequence, TensorView effort, const Function& progress) const;

  /*! \brief `launches`: rows of operators, devices, streams, in launch order and topological; the
   * third is filled in. */
  void AllocateStreams(int64_t method, TensorView launches) const;

  int64_t CountSynchronizations(TensorView launches) const;

  /*! \brief `demand` holds whole numbers; `order` is filled in. */
  void OrderLaunches(int64_t method, TensorView demand, TensorView memory_bound,
                     TensorView order) const;

  // ---- searches over sequences of events, rows of kind, item, source, device: event_search.cc

  /*!
   * \brief List scheduling: the sequence and its latency in nanoseconds.
   * \param choices Rows of direct (0 or 1), then 0 or 1 for each device.
   * \param choice The row of each operator.
   */
  tvm::ffi::Array<tvm::ffi::Any> Construct(TensorView choices, TensorView choice,
                                           double memory_scale) const;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.Problem", ProblemObj, tvm::ffi::Object);

 private:
  friend class LocalSearchObj;
  friend class PartialScheduleObj;
  friend class ScheduleObj;

  /*! \brief The schedule as an object, where it has all operators. */
  Found Complete(simulate::Schedule schedule) const;
  const search::TaskGraph& Graph() const;
  const search::Instance& EventInstance() const;

  const simulate::Problem problem_;
  mutable std::once_flag graph_made_, instance_made_;
  mutable std::unique_ptr<search::TaskGraph> graph_;
  mutable std::unique_ptr<search::Instance> instance_;
};

/*! \brief "tvm_sched.LocalSearch": improves a sequence step by step. */
class LocalSearchObj : public tvm::ffi::Object {
 public:
  /*! \brief `others`: problems of other runs by whose latencies schedules are judged, too, each
   * with its share; what is left of 1 is that of the run of `problem`. */
  LocalSearchObj(const ProblemObj* problem, tvm::ffi::TensorView start, double memory_scale,
                 int64_t seed, int64_t goal, tvm::ffi::Array<tvm::ffi::Any> others);

  /*! \brief Replays about that many events more; false when it is of no use to go on. */
  bool Step(int64_t events) { return search_->Step(events); }
  int64_t LatencyNs() const { return search_->latency().count; }
  tvm::ffi::Tensor Best() const;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.LocalSearch", LocalSearchObj, tvm::ffi::Object);

 private:
  const tvm::ffi::ObjectRef problem_;  // these keep their instances while the search goes on
  const tvm::ffi::Array<tvm::ffi::Any> others_;
  std::unique_ptr<search::LocalSearch> search_;
};

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_PROBLEM_H_
