// Local search over assignments of nodes to stages.
#ifndef TVM_SCHED_SEARCH_PARTITION_REFINE_H_
#define TVM_SCHED_SEARCH_PARTITION_REFINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "search/partition/graph.h"

namespace tvm_sched::partition {

/// The stage of each node, 0 to stages - 1; no edge leads to an earlier stage.
using Stages = std::vector<std::int32_t>;

struct RefineSettings {
  std::size_t stages = 1;
  std::uint64_t seed = 0;
  std::int64_t moves = 1'000'000;  // tried
};

/// Improves an assignment by simulated annealing: nodes move between stages, alone or in
/// exchange.
///
/// An assignment need not be a slicing of one good order to be reached, which is what random keys
/// find hard from 16 stages on. The energy is the sum of a power of the stages' costs, which is
/// smooth where their maximum is flat; the best maximum seen is what is returned. Overflow counts
/// the parameters alone, without peak memory: callers price the result.
Stages Refine(const Graph& graph, Stages start, const RefineSettings& settings,
              const std::function<bool()>& stop);

/// An order that runs stage after stage, inside a stage in Kahn's order.
Order OrderOf(const Graph& graph, const Stages& stages);

}  // namespace tvm_sched::partition

#endif  // TVM_SCHED_SEARCH_PARTITION_REFINE_H_
