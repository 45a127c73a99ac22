// A problem for list schedulers: operators with times, and edges with communication times.
#ifndef TVM_SCHED_SEARCH_TASK_GRAPH_H_
#define TVM_SCHED_SEARCH_TASK_GRAPH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "simulate/problem.h"

namespace tvm_sched::search {

using simulate::DeviceId;
using simulate::OperatorId;

/// Longer than any run, in nanoseconds; sums of it are cut off here.
inline constexpr std::int64_t kFar = std::int64_t{1} << 60;

inline std::int64_t Add(std::int64_t a, std::int64_t b) { return std::min(a + b, kFar); }

/// An operator next to another one, and the number of the edge between them.
struct Neighbour {
  OperatorId op;
  std::int32_t edge;
};

/// Operators, the edges between them and their times in nanoseconds.
///
/// An edge stands for all tensors between two operators, which travel one after another, or side by
/// side where nothing contends. Loads of
/// parameters and turns on channels are left out: those who need them look at the Problem.
class TaskGraph {
 public:
  explicit TaskGraph(const simulate::Problem& problem);

  std::size_t size() const { return predecessors_.size(); }
  std::size_t devices() const { return devices_; }
  std::span<const Neighbour> Predecessors(OperatorId op) const { return predecessors_[op]; }
  std::span<const Neighbour> Successors(OperatorId op) const { return successors_[op]; }

  /// In the faster mode; kFar where the operator cannot run.
  std::int64_t Time(OperatorId op, DeviceId device) const { return time_(op, device); }
  /// 0 on one device; kFar where nothing joins the two.
  std::int64_t Communication(std::int32_t edge, DeviceId from, DeviceId to) const {
    if (from == to) return 0;
    const std::int32_t speed = speed_(from, to);
    return speed < 0 ? kFar : communication_(edge, speed);
  }

  /// Mean over the devices that can run an operator, over the pairs of devices that are
  /// joined; 0 where there is none.
  double MeanTime(OperatorId op) const { return mean_time_[op]; }
  double MeanCommunication(std::int32_t edge) const { return mean_communication_[edge]; }
  /// What counts after an operator's end besides what follows it.
  std::int64_t Lag(OperatorId op) const { return lag_[op]; }

  /// Operators so that each stands after its predecessors; the first free one first.
  const std::vector<OperatorId>& TopologicalOrder() const { return order_; }

  /// Length of the longest path from the start of each operator to the end, of mean times
  /// and with the lag of the last; HEFT's upward rank and HIOS's priority indicator.
  std::vector<double> UpwardRank() const;

  /// By descending upward rank: a topological order, since no operator takes no time.
  std::vector<OperatorId> PriorityOrder() const;

 private:
  void FindEdges(const simulate::Problem& problem);
  void FindOrder();

  std::size_t devices_;
  simulate::Rows<Neighbour> predecessors_, successors_;
  simulate::Matrix<std::int64_t> time_, communication_;
  simulate::Matrix<std::int32_t> speed_;
  std::vector<double> mean_time_, mean_communication_;
  std::vector<std::int64_t> lag_;
  std::vector<OperatorId> order_;
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_TASK_GRAPH_H_
