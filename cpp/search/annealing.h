// Simulated annealing over the order, the devices and the stages of all operators.
#ifndef TVM_SCHED_SEARCH_ANNEALING_H_
#define TVM_SCHED_SEARCH_ANNEALING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "search/instance.h"
#include "search/task_graph.h"

namespace tvm_sched::search {

/// Operators in the order in which they are appended to a schedule.
///
/// `joins[i]` says that operator `order[i]` starts together with the one before it, where that is
/// on the same device.
struct StageSequence {
  std::vector<OperatorId> order;
  std::vector<DeviceId> device;  // by operator
  std::vector<bool> joins;       // by position

  /// Whether positions `i` - 1 and `i` are of one stage.
  bool SameStage(std::size_t i) const {
    return i > 0 && joins[i] && device[order[i]] == device[order[i - 1]];
  }
};

struct Effort {
  /// Operators to time in all; a limit that is the same on every machine.
  std::int64_t operators = 0;
  std::uint64_t seed = 0;
  /// Latency that cannot be beaten: reached, the search ends.
  std::int64_t goal = 0;
  /// Most operators of a stage; 1: no stages.
  int stage = 1;
};

/// Called now and then with operators timed and in all; returns the part of the time limit
/// that is over, 1 or more to end the search.
using Clock = std::function<double(std::int64_t done, std::int64_t total)>;

/// Latency of a sequence by the rules of PartialSchedule; kFar where it cannot run.
std::int64_t LatencyOf(const Instance& instance, const TaskGraph& graph,
                       const StageSequence& sequence);

/// The best sequence found by simulated annealing; never a worse one than `start`.
///
/// A move gives an operator another device, another place between its neighbours in the graph, the
/// device of an operator near it in exchange, or a partner in a stage; where parameters are loaded,
/// also some operators that are joined on one device go to another. With stages and without loads,
/// two operators also exchange their places in stages, and whole stages move; moves are then judged
/// by the time for which stages occupy devices beside the latency. Operators that the latency
/// waits for are moved more often. Now and then the sequence is sorted by time, so that what is
/// near in it is near in time. Temperature falls with the effort spent, or with the clock where
/// that is ahead. Where copies do not contend and nothing is loaded, a move that is refused costs
/// no more than the operators that it changed and their successors; otherwise the whole sequence is
/// placed anew until its end, or what its buses still have to load, is too late; into gaps if that
/// makes the start shorter. See `PlaceBest` for the best sequence.
StageSequence Anneal(const Instance& instance, const TaskGraph& graph, const StageSequence& start,
                     const Effort& effort, const Clock& clock);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_ANNEALING_H_
