// Decides whether some stage is worth more than a target, for the bound from prices of nodes.
#ifndef TVM_SCHED_SEARCH_PARTITION_STAGE_VALUE_H_
#define TVM_SCHED_SEARCH_PARTITION_STAGE_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "search/partition/graph.h"

namespace tvm_sched::partition {

constexpr std::int64_t kMostValue = std::int64_t{1} << 30;  // of all nodes together

struct StageValueSettings {
  std::vector<std::int64_t> value;  // of each node, 0 or more
  std::int64_t target = 0;          // of a stage
  double limit = 0;                 // the most that a stage may cost
  std::size_t first = 0;  // nodes, dearest first, whose stages have been looked through before
  std::size_t steps = 1'000'000;  // of the search tree, after which no further node's are
  std::size_t most = SIZE_MAX;    // steps after which the search ends, wherever it is
};

struct StageValue {
  std::size_t next = 0;                     // nodes whose stages have been looked through now
  std::size_t steps = 0;                    // of the search tree
  std::vector<std::vector<NodeId>> better;  // stages worth more than the target
};

/// Looks for sets of nodes worth more than the target that a stage within the limit can hold.
///
/// Node after node, those in which it is the dearest, of which the search ends with the first
/// found; where none is found, none is worth more. A stage holds all nodes on paths between its
/// nodes. Branch and bound over which nodes it holds. Bounds are Lagrangian: for a price of cost,
/// the best set is a minimum cut, for transfers are submodular. Costs are rounded down to multiples
/// of a power of two and all else is in whole numbers, so that a proof holds whatever the rounding.
/// Overflow of parameters is not counted. Throws std::overflow_error where the graph's times add up
/// to no finite number.
StageValue MostValuableStages(const Graph& graph, const StageValueSettings& settings,
                              const std::function<bool()>& stop);

}  // namespace tvm_sched::partition

#endif  // TVM_SCHED_SEARCH_PARTITION_STAGE_VALUE_H_
