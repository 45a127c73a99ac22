// HIOS's grouping of neighbours on a device into stages (Kundu and Shu, "HIOS", Algorithm 2).
#include <algorithm>

#include "search/hios.h"
#include "simulate/problem.h"

namespace tvm_sched::search {
namespace {

/// Times of stages that follow each other on their devices, without contention on the way.
class StageTimes {
 public:
  StageTimes(const TaskGraph& graph, const simulate::Concurrency& concurrency,
             const std::vector<DeviceId>& device, int streams)
      : graph_(graph),
        concurrency_(concurrency),
        device_(device),
        streams_(streams),
        leader_(graph.size()),
        next_(graph.size(), simulate::kNone),
        waits_(graph.size()),
        start_(graph.size()) {}

  /// Starts of stages by longest paths; the latency, kFar where stages wait for each other in
  /// a circle. O(operators + edges).
  std::int64_t Evaluate(const Stages& stages) {
    std::ranges::fill(waits_, 0);
    std::ranges::fill(start_, 0);
    members_.assign(graph_.size(), nullptr);
    for (const auto& row : stages) {
      OperatorId last = simulate::kNone;
      for (const Stage& stage : row) {
        members_[stage[0]] = &stage;
        next_[stage[0]] = simulate::kNone;
        for (OperatorId o : stage) leader_[o] = stage[0];
        if (last != simulate::kNone) {
          next_[last] = stage[0];
          ++waits_[stage[0]];
        }
        last = stage[0];
      }
    }
    return Sweep();
  }

  std::int64_t start(OperatorId leader) const { return start_[leader]; }
  const std::vector<OperatorId>& order() const { return order_; }

 private:
  std::int64_t Sweep() {
    std::size_t stages = 0;
    order_.clear();
    for (std::size_t o = 0; o < graph_.size(); ++o)
      waits_[leader_[o]] += graph_.Predecessors(static_cast<OperatorId>(o)).size();
    for (std::size_t o = 0; o < graph_.size(); ++o) {
      if (members_[o] == nullptr) continue;
      ++stages;
      if (waits_[o] == 0) order_.push_back(static_cast<OperatorId>(o));
    }
    std::int64_t latency = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const OperatorId leader = order_[i];
      const std::int64_t end = Add(start_[leader], Duration(*members_[leader]));
      latency = std::max(latency, end);
      if (next_[leader] != simulate::kNone) Ready(next_[leader], end);
      for (OperatorId o : *members_[leader]) {
        for (const Neighbour& after : graph_.Successors(o)) {
          Ready(leader_[after.op],
                Add(end, graph_.Communication(after.edge, device_[o], device_[after.op])));
        }
      }
    }
    return order_.size() == stages ? latency : kFar;
  }

  void Ready(OperatorId leader, std::int64_t when) {
    start_[leader] = std::max(start_[leader], when);
    if (--waits_[leader] == 0) order_.push_back(leader);
  }

  std::int64_t Duration(const Stage& stage) {
    const DeviceId device = device_[stage[0]];
    if (stage.size() == 1) return graph_.Time(stage[0], device);
    together_.clear();
    for (OperatorId o : stage) {
      together_.push_back({o, static_cast<std::int32_t>(together_.size() % streams_),
                           simulate::Nanoseconds{graph_.Time(o, device)}});
    }
    return concurrency_.StageTime(device, together_).count;
  }

  const TaskGraph& graph_;
  const simulate::Concurrency& concurrency_;
  const std::vector<DeviceId>& device_;
  std::size_t streams_;
  /// By operator: the first of its stage; by first operator: the next stage, those that it
  /// waits for, its start and its members.
  std::vector<OperatorId> leader_, next_;
  std::vector<std::size_t> waits_;
  std::vector<std::int64_t> start_;
  std::vector<const Stage*> members_;
  std::vector<OperatorId> order_;
  std::vector<simulate::Member> together_;
};

Stages OneByOne(const TaskGraph& graph, const std::vector<OperatorId>& order,
                const std::vector<DeviceId>& device) {
  Stages stages(graph.devices());
  for (OperatorId o : order) stages[device[o]].push_back({o});
  return stages;
}

}  // namespace

Stages GroupNeighbours(const TaskGraph& graph, const simulate::Concurrency& concurrency,
                       const std::vector<DeviceId>& device, int window, int streams,
                       const Progress& progress) {
  const std::vector<OperatorId> order = graph.PriorityOrder();
  Stages stages = OneByOne(graph, order, device);
  if (window < 2 || !concurrency.known()) return stages;
  StageTimes times(graph, concurrency, device, streams);
  std::int64_t latency = times.Evaluate(stages);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i % 64 == 0)
      progress(static_cast<std::int64_t>(i), static_cast<std::int64_t>(order.size()));
    auto& row = stages[device[order[i]]];
    const auto at = std::ranges::find(row, Stage{order[i]});
    if (at == row.end()) continue;  // in a stage already
    const auto position = at - row.begin();
    Stages best;
    Stage together = *at;
    for (int size = 2; size <= window; ++size) {
      const auto last = position + size - 1;
      if (last >= std::ssize(row) || row[last].size() > 1) break;
      together.push_back(row[last][0]);
      Stages candidate = stages;
      auto& changed = candidate[device[order[i]]];
      changed.erase(changed.begin() + position, changed.begin() + last);
      changed[position] = together;
      const std::int64_t found = times.Evaluate(candidate);  // kFar where they depend on each other
      if (found >= latency) continue;
      latency = found;
      best = std::move(candidate);
    }
    if (!best.empty()) stages = std::move(best);
  }
  return stages;
}

std::vector<std::pair<DeviceId, Stage>> InOrder(const TaskGraph& graph,
                                                const simulate::Concurrency& concurrency,
                                                const Stages& stages, int streams) {
  std::vector<DeviceId> device(graph.size(), simulate::kNone);
  std::vector<const Stage*> members(graph.size());
  for (std::size_t d = 0; d < stages.size(); ++d) {
    for (const Stage& stage : stages[d]) {
      members[stage[0]] = &stage;
      for (OperatorId o : stage) device[o] = static_cast<DeviceId>(d);
    }
  }
  StageTimes times(graph, concurrency, device, streams);
  times.Evaluate(stages);
  std::vector<OperatorId> order = times.order();
  std::ranges::stable_sort(order, {}, [&](OperatorId leader) { return times.start(leader); });
  std::vector<std::pair<DeviceId, Stage>> result;
  for (OperatorId leader : order) result.push_back({device[leader], *members[leader]});
  return result;
}

}  // namespace tvm_sched::search
