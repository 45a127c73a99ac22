// Maximum flow by Dinic's algorithm, for networks that are built and solved once.
#ifndef TVM_SCHED_SEARCH_PARTITION_MAX_FLOW_H_
#define TVM_SCHED_SEARCH_PARTITION_MAX_FLOW_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_sched::partition {

class MaxFlow {
 public:
  static constexpr std::int64_t kInfinite = std::int64_t{1} << 60;

  explicit MaxFlow(std::size_t nodes) : first_(nodes, kEnd) {}

  void Add(std::int32_t from, std::int32_t to, std::int64_t capacity) {
    Half(from, to, capacity);
    Half(to, from, 0);
  }

  /// The value of the flow; capacities from the source must not add up to `kInfinite`.
  std::int64_t Solve(std::int32_t source, std::int32_t sink) {
    std::int64_t value = 0;
    while (Level(source, sink)) {
      next_ = first_;
      while (const std::int64_t sent = Send(source, sink, kInfinite)) value += sent;
    }
    return value;
  }

  /// Whether the minimum cut with the smallest source side has a node there.
  bool OnSourceSide(std::int32_t node) const { return level_[node] >= 0; }

 private:
  static constexpr std::int32_t kEnd = -1;

  struct Arc {
    std::int32_t to, next;
    std::int64_t left;
  };

  void Half(std::int32_t from, std::int32_t to, std::int64_t capacity) {
    arcs_.push_back({to, first_[from], capacity});
    first_[from] = static_cast<std::int32_t>(arcs_.size()) - 1;
  }

  bool Level(std::int32_t source, std::int32_t sink) {
    level_.assign(first_.size(), -1);
    level_[source] = 0;
    queue_.assign(1, source);
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      for (std::int32_t a = first_[queue_[i]]; a != kEnd; a = arcs_[a].next) {
        if (arcs_[a].left == 0 || level_[arcs_[a].to] >= 0) continue;
        level_[arcs_[a].to] = level_[queue_[i]] + 1;
        queue_.push_back(arcs_[a].to);
      }
    }
    return level_[sink] >= 0;
  }

  std::int64_t Send(std::int32_t node, std::int32_t sink, std::int64_t most) {
    if (node == sink) return most;
    std::int64_t sent = 0;
    for (std::int32_t& a = next_[node]; a != kEnd; a = arcs_[a].next) {
      Arc& arc = arcs_[a];
      if (arc.left == 0 || level_[arc.to] != level_[node] + 1) continue;
      const std::int64_t more = Send(arc.to, sink, std::min(most - sent, arc.left));
      arcs_[a].left -= more;
      arcs_[a ^ 1].left += more;
      sent += more;
      if (sent == most) return sent;
    }
    return sent;
  }

  std::vector<std::int32_t> first_, next_, level_, queue_;
  std::vector<Arc> arcs_;
};

}  // namespace tvm_sched::partition

#endif  // TVM_SCHED_SEARCH_PARTITION_MAX_FLOW_H_
