#include "search/task_graph.h"

#include <functional>
#include <map>
#include <numeric>
#include <queue>

namespace tvm_sched::search {

TaskGraph::TaskGraph(const simulate::Problem& problem)
    : devices_(problem.devices.size()),
      time_(problem.operators(), devices_, kFar),
      speed_(devices_, devices_, simulate::kNone),
      mean_time_(problem.operators()),
      lag_(problem.operators()) {
  for (std::size_t o = 0; o < problem.operators(); ++o) {
    int able = 0;
    for (std::size_t d = 0; d < devices_; ++d) {
      const auto best = std::min(problem.operator_time(o, d), problem.direct_time(o, d));
      if (best == simulate::kNever) continue;
      time_(o, d) = best.count;
      mean_time_[o] += static_cast<double>(best.count);
      ++able;
    }
    if (able > 0) mean_time_[o] /= able;
    lag_[o] = problem.Lag(static_cast<OperatorId>(o)).count;
  }
  for (std::size_t a = 0; a < devices_; ++a) {
    for (std::size_t b = 0; b < devices_; ++b) {
      const std::int32_t route =
          problem.RouteOf(static_cast<DeviceId>(a), static_cast<DeviceId>(b));
      if (a != b && route != simulate::kNone) speed_(a, b) = problem.route_speed[route];
    }
  }
  FindEdges(problem);
  FindOrder();
}

void TaskGraph::FindEdges(const simulate::Problem& problem) {
  const std::size_t speeds =
      problem.transfer_time.columns == 0
          ? 0
          : problem.transfer_time.value.size() / problem.transfer_time.columns;
  const bool concurrent = problem.route_channels.value.empty();
  std::vector<std::vector<Neighbour>> successors(problem.operators());
  for (std::size_t o = 0; o < problem.operators(); ++o) {
    std::map<OperatorId, std::int32_t> edge;
    for (simulate::TensorId t : problem.inputs[o]) {
      const OperatorId from = problem.tensors[t].producer;
      if (from == simulate::kNone) continue;
      const auto number = static_cast<std::int32_t>(mean_communication_.size());
      const auto [found, added] = edge.try_emplace(from, number);
      if (added) {
        mean_communication_.push_back(0);
        communication_.value.resize(communication_.value.size() + speeds);
        successors[from].push_back({static_cast<OperatorId>(o), number});
      }
      for (std::size_t s = 0; s < speeds; ++s) {
        std::int64_t& sum = communication_.value[found->second * speeds + s];
        const std::int64_t time = problem.transfer_time(s, t).count;
        sum = concurrent ? std::max(sum, time) : Add(sum, time);
      }
    }
    for (const auto& [from, number] : edge) predecessors_.value.push_back({from, number});
    predecessors_.EndRow();
  }
  communication_.columns = speeds;
  for (const auto& row : successors) {
    successors_.value.insert(successors_.value.end(), row.begin(), row.end());
    successors_.EndRow();
  }
  int pairs = 0;
  for (std::int32_t speed : speed_.value) {
    if (speed < 0) continue;
    ++pairs;
    for (std::size_t e = 0; e < mean_communication_.size(); ++e)
      mean_communication_[e] += static_cast<double>(communication_(e, speed));
  }
  for (double& mean : mean_communication_) mean /= std::max(pairs, 1);
}

void TaskGraph::FindOrder() {
  std::vector<std::size_t> waits(size());
  std::priority_queue<OperatorId, std::vector<OperatorId>, std::greater<>> free;
  for (std::size_t o = 0; o < size(); ++o) {
    waits[o] = predecessors_[o].size();
    if (waits[o] == 0) free.push(static_cast<OperatorId>(o));
  }
  while (!free.empty()) {
    const OperatorId o = free.top();
    free.pop();
    order_.push_back(o);
    for (const Neighbour& next : Successors(o)) {
      if (--waits[next.op] == 0) free.push(next.op);
    }
  }
}

std::vector<double> TaskGraph::UpwardRank() const {
  std::vector<double> rank(size());
  for (auto o = order_.rbegin(); o != order_.rend(); ++o) {
    rank[*o] = static_cast<double>(lag_[*o]);
    for (const Neighbour& next : Successors(*o))
      rank[*o] = std::max(rank[*o], mean_communication_[next.edge] + rank[next.op]);
    rank[*o] += mean_time_[*o];
  }
  return rank;
}

std::vector<OperatorId> TaskGraph::PriorityOrder() const {
  const std::vector<double> rank = UpwardRank();
  std::vector<OperatorId> result = order_;
  std::ranges::stable_sort(result, [&](OperatorId a, OperatorId b) { return rank[a] > rank[b]; });
  return result;
}

}  // namespace tvm_sched::search
