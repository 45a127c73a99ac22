// IOS: the stages of one device by dynamic programming.
#ifndef TVM_SCHED_SEARCH_IOS_H_
#define TVM_SCHED_SEARCH_IOS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "search/hios.h"
#include "search/task_graph.h"
#include "simulate/concurrency.h"

namespace tvm_sched::search {

struct IosLimits {
  /// Most groups of a stage (streams), most operators of a group.
  int groups = 8, group_size = 3;
  /// Most operators that are looked at together: larger blocks are cut; 0: none is.
  int block = 0;
  /// Most states of a block.
  std::int64_t states = 1'000'000;
};

/// A stage whose operators run in groups; those of a group one after another.
struct GroupedStage {
  std::vector<OperatorId> ops;
  std::vector<std::int32_t> group;
};

struct IosAnswer {
  std::vector<GroupedStage> stages;
  /// Largest block, and the number of its states: kTooMany where there are more than
  /// allowed, and then no stages.
  std::int64_t operators = 0, states = 0;
  /// Then, log2 of about how many states that block has.
  double log2_states = 0;
  /// Stages whose time was requested, each once, and the sum of these times: what measuring
  /// them takes.
  std::int64_t profiled = 0;
  simulate::Nanoseconds profile_time;
};

/// Stands for more states than allowed, or more operators in a block than a state can hold.
inline constexpr std::int64_t kTooMany = -1;

/// The best stages of each block, of all that the limits allow.
///
/// Ding, Zhu, Jia, Pekhimenko and Han, "IOS: inter-operator scheduler for CNN acceleration" (MLSys
/// 2021), Section 4: the last stage of a set of operators is tried in all ways, the rest is a
/// smaller set. The pruning is theirs, too. Operators are not merged into larger ones. A state is a
/// set of operators that contains the predecessors of its own; states are counted before any is
/// solved.
/// \param block_of Number of each operator's block, no smaller than those of its predecessors;
/// empty: blocks end where one operator is before or after all others.
IosAnswer SolveStages(const TaskGraph& graph, const simulate::Concurrency& concurrency,
                      DeviceId device, const IosLimits& limits,
                      std::span<const std::int64_t> block_of, const Progress& progress);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_IOS_H_
