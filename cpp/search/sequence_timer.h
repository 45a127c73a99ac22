// Times sequences of operators incrementally, one change after another.
#ifndef TVM_SCHED_SEARCH_SEQUENCE_TIMER_H_
#define TVM_SCHED_SEARCH_SEQUENCE_TIMER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "search/annealing.h"
#include "search/partial_schedule.h"
#include "search/task_graph.h"

namespace tvm_sched::search {

/// Times a sequence that changes bit by bit.
class SequenceTimer {
 public:
  virtual ~SequenceTimer() = default;

  /// Latency of a sequence that differs from the one kept last at positions `from` to `to`
  /// only, and in which no stage goes on from `to` to the position behind it.
  /// \return kFar as soon as it must get above `limit`, which is no less than the latency kept
  /// last.
  virtual std::int64_t Time(const StageSequence& sequence, std::size_t from, std::size_t to,
                            std::int64_t limit) = 0;

  /// Latency of any sequence, kept.
  std::int64_t TimeAll(const StageSequence& sequence);

  /// The sequence timed last is the one that later ones are compared with.
  virtual void Keep() = 0;

  /// Whether operators in the order of their starts have the same times: what they do on
  /// devices is then all that their order decides, not whose copy goes first.
  virtual bool SortsFreely() const = 0;

  /// When operators of the sequence kept last start and end.
  virtual std::int64_t Start(OperatorId op) const = 0;
  virtual std::int64_t End(OperatorId op) const = 0;

  /// Whether operators and transfers may stand in gaps before what precedes them in the
  /// sequence.
  virtual bool inserts() const { return false; }

  /// Operators timed so far; one that looks for gaps counts as `kWorkInGaps`.
  std::int64_t work() const { return work_; }

 protected:
  std::int64_t work_ = 0;
};

/// The fastest timer that is exact for a problem.
std::unique_ptr<SequenceTimer> MakeTimer(const Instance& instance, const TaskGraph& graph);

/// The timer under which a sequence ends first, and the sequence in the order that does.
///
/// Between devices that share buses with their loads a load would wait for copies that stand before
/// it in the sequence and run later. List schedulers put it into the gap. So with insertion the
/// order of their ranks is tried, too. Insertion takes longer, so it is used only where it helps.
std::pair<std::unique_ptr<SequenceTimer>, StageSequence> MakeTimerFor(
    const Instance& instance, const TaskGraph& graph, const StageSequence& sequence);

/// The schedule of a sequence with or without insertion, whichever ends first; without
/// events where it cannot run.
PartialSchedule PlaceBest(const Instance& instance, const StageSequence& sequence);

/// Appends the stages of a sequence to an empty schedule; false where one cannot run, or as
/// soon as the run must end after `limit`.
bool Append(const StageSequence& sequence, PartialSchedule* schedule, std::int64_t limit = kFar);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_SEQUENCE_TIMER_H_
