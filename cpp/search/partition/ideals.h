// The dynamic program over ideals: the best partition into stages, for graphs with few ideals.
#ifndef TVM_SCHED_SEARCH_PARTITION_IDEALS_H_
#define TVM_SCHED_SEARCH_PARTITION_IDEALS_H_

#include <cstddef>
#include <functional>
#include <limits>

#include "search/partition/refine.h"

namespace tvm_sched::partition {

struct IdealSettings {
  std::size_t stages = 1;
  std::size_t most_ideals = 100'000;
  double limit = std::numeric_limits<double>::infinity();  // only stages cheaper than this
};

struct IdealPartition {
  std::size_t ideals = 0;  // found; more than `most_ideals`: given up
  bool stopped = false;
  double cost = std::numeric_limits<double>::infinity();
  Stages stages;  // empty where there is no partition below the limit
};

/// Dynamic program over ideals of Tarnawski et al., "Efficient Algorithms for Device
/// Placement of DNN Graph Operators" (NeurIPS 2020), Section 5.1, without replication.
///
/// An ideal is a set of nodes that holds the predecessors of each of its nodes; a stage is the
/// difference of two. Time is the number of pairs of nested ideals, times degree and stages.
/// Without peak memory: overflow counts the parameters alone. Proof: Theorem 3 of
/// docs/proofs/partition_ideals.md.
IdealPartition PartitionByIdeals(const Graph& graph, const IdealSettings& settings,
                                 const std::function<bool()>& stop);

}  // namespace tvm_sched::partition

#endif  // TVM_SCHED_SEARCH_PARTITION_IDEALS_H_
