// Costs of all segments of a topological order, equation (3) of Archer et al., "Practical
// Performance Guarantees for Pipelined DNN Inference", ICML 2024.
#ifndef TVM_SCHED_SEARCH_PARTITION_SEGMENT_COSTS_H_
#define TVM_SCHED_SEARCH_PARTITION_SEGMENT_COSTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "search/partition/graph.h"
#include "search/partition/peak_memory.h"

namespace tvm_sched::partition {

/// Gives the costs of the segments that begin at position 0, then at position 1, and so on.
///
/// The paper keeps all n^2 costs in a table that a two-dimensional Fenwick tree fills in
/// O(n^2 + m log^2 n). Here every update comes before the queries that see it, so a row of
/// differences is enough: it changes in O(degree) from one first position to the next, and its
/// prefix sums are the row of costs. O(n^2 + m) time, O(n + m) memory.
class SegmentCosts {
 public:
  SegmentCosts(const Graph& graph, std::span<const NodeId> order);

  /// Costs of the segments [first, r] for r from `first` on; call it with first = 0, 1, 2...
  ///
  /// The row ends before the first segment with at least `limit` work, for no longer segment can
  /// cost less than that. It is valid until the next call.
  std::span<const double> Row(std::size_t first, double limit);

 private:
  /// Moves the differences from segments that begin at `first` to those beginning after.
  void Leave(std::size_t first);
  /// Adds what the parameters cost that do not fit.
  void AddOverflow(std::size_t first, std::span<double> row);

  const Graph& graph_;
  std::span<const NodeId> order_;
  std::vector<std::size_t> position_;
  Rows<std::int32_t> reader_positions_;  // of each tensor, ascending
  std::vector<std::size_t>
      next_reader_;                 // of each tensor: the first reader that is not left behind
  std::vector<double> difference_;  // of transfer times, by the segment's last position
  std::vector<double> row_;
  PeakMemory peak_;
};

/// Cost of a set of nodes that run in the order given: equation (3).
double StageCost(const Graph& graph, std::span<const NodeId> nodes);

}  // namespace tvm_sched::partition

#endif  // TVM_SCHED_SEARCH_PARTITION_SEGMENT_COSTS_H_
