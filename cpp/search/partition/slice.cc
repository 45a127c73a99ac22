#include "search/partition/slice.h"

#include <algorithm>

#include "search/partition/segment_costs.h"

namespace tvm_sched::partition {

namespace {

/// Least bottleneck of the first r nodes in exactly j segments, for all r and j.
class SliceTable {
 public:
  SliceTable(std::size_t nodes, std::size_t stages)
      : columns_(nodes + 1), best_((stages + 1) * columns_, kNever), from_(best_.size(), 0) {
    best_[0] = 0;
  }

  double operator()(std::size_t stages, std::size_t end) const {
    return best_[stages * columns_ + end];
  }

  /// The segments [first, first + i] at the costs given, after `stages` other segments.
  void Extend(std::size_t stages, std::size_t first, std::span<const double> costs, double limit) {
    const double before = (*this)(stages, first);
    double* best = &best_[(stages + 1) * columns_ + first + 1];
    std::int32_t* from = &from_[(stages + 1) * columns_ + first + 1];
    for (std::size_t i = 0; i < costs.size(); ++i) {
      const double cost = std::max(before, costs[i]);
      const bool better = cost < best[i] && cost < limit;
      best[i] = better ? cost : best[i];
      from[i] = better ? static_cast<std::int32_t>(first) : from[i];
    }
  }

  std::vector<std::size_t> Ends(std::size_t stages, std::size_t end) const {
    std::vector<std::size_t> ends;
    for (; stages > 0; --stages) {
      ends.push_back(end);
      end = static_cast<std::size_t>(from_[stages * columns_ + end]);
    }
    std::reverse(ends.begin(), ends.end());
    return ends;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  std::size_t columns_;
  std::vector<double> best_;
  std::vector<std::int32_t> from_;
};

}  // namespace

Slicing Slice(const Graph& graph, std::span<const NodeId> order, std::size_t stages, double limit) {
  const std::size_t n = order.size();
  if (n == 0) return {0, {}};
  stages = std::min(stages, n);
  SliceTable table(n, stages);
  SegmentCosts costs(graph, order);
  double work_left = 0;
  for (double work : graph.work) work_left += work;
  for (std::size_t first = 0; first < n; ++first) {
    const std::span<const double> row = costs.Row(first, limit);
    for (std::size_t j = 0; j < stages; ++j) {
      // What is left must fit into the segments that are left.
      const bool hopeless = work_left >= limit * static_cast<double>(stages - j);
      if (!hopeless && table(j, first) < limit) table.Extend(j, first, row, limit);
    }
    work_left -= graph.work[order[first]];
  }
  Slicing best;
  std::size_t used = 0;
  for (std::size_t j = 1; j <= stages; ++j) {
    if (table(j, n) < best.cost) best.cost = table(j, n), used = j;
  }
  if (used > 0) best.ends = table.Ends(used, n);
  return best;
}

}  // namespace tvm_sched::partition
