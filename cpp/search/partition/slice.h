// SliceGraph: the optimal cut of a topological order into stages.
#ifndef TVM_SCHED_SEARCH_PARTITION_SLICE_H_
#define TVM_SCHED_SEARCH_PARTITION_SLICE_H_

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "search/partition/graph.h"

namespace tvm_sched::partition {

/// An order cut into stages: the bottleneck's cost, and where each stage ends.
struct Slicing {
  double cost = std::numeric_limits<double>::infinity();
  std::vector<std::size_t>
      ends;  // ascending, the last is the number of nodes; empty: none below limit
};

/// Cuts `order` into at most `stages` segments so that the dearest is as cheap as possible.
///
/// Algorithm 1 of Archer et al. (ICML 2024). Only slicings below `limit` are looked at: the better
/// the limit, the faster. O(n^2 k) without one, and about O(n^2) with a good one.
Slicing Slice(const Graph& graph, std::span<const NodeId> order, std::size_t stages,
              double limit = std::numeric_limits<double>::infinity());

}  // namespace tvm_sched::partition

#endif  // TVM_SCHED_SEARCH_PARTITION_SLICE_H_
