#include "search/instance.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

namespace tvm_sched::search {
namespace {

/// Neighbours to try for a parameter; on large machines there would be too many.
constexpr std::size_t kMostTransits = 8;

void SortDistinct(std::vector<OperatorId>* row) {
  std::sort(row->begin(), row->end());
  row->erase(std::unique(row->begin(), row->end()), row->end());
}

simulate::Rows<std::int32_t> ToRows(const std::vector<std::vector<std::int32_t>>& lists) {
  simulate::Rows<std::int32_t> rows;
  for (const auto& list : lists) {
    rows.value.insert(rows.value.end(), list.begin(), list.end());
    rows.EndRow();
  }
  return rows;
}

std::vector<OperatorId> TopologicalOrder(const Instance& instance) {
  std::vector<OperatorId> order;
  std::vector<std::size_t> waiting(instance.operators());
  for (std::size_t o = 0; o < waiting.size(); ++o) {
    waiting[o] = instance.predecessors[o].size();
    if (waiting[o] == 0) order.push_back(static_cast<OperatorId>(o));
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (OperatorId s : instance.successors[order[i]]) {
      if (--waiting[s] == 0) order.push_back(s);
    }
  }
  if (order.size() < waiting.size()) throw std::invalid_argument("the graph has a cycle");
  return order;
}

void FindLongestPaths(Instance* instance) {
  const std::vector<OperatorId> order = TopologicalOrder(*instance);
  instance->rank.assign(order.size(), {});
  instance->tail.assign(order.size(), {});
  for (auto o = order.rbegin(); o != order.rend(); ++o) {
    Nanoseconds best = kNever;
    for (std::size_t d = 0; d < instance->devices(); ++d) {
      for (bool direct : {false, true}) {
        best = std::min(best, instance->Duration(*o, static_cast<DeviceId>(d), direct));
      }
    }
    instance->tail[*o] = instance->problem.Lag(*o);
    for (OperatorId s : instance->successors[*o]) {
      instance->tail[*o] = std::max(instance->tail[*o], instance->rank[s]);
    }
    instance->rank[*o] = instance->tail[*o] + (best == kNever ? Nanoseconds{} : best);
  }
}

/// Transit devices of `device`; copies of a large tensor say which neighbours are near.
std::vector<DeviceId> TransitsOf(const Instance& instance, DeviceId device) {
  const simulate::Problem& problem = instance.problem;
  const std::int32_t down = problem.RouteOf(kHost, device);
  if (down == kNone) return {};
  const auto devices = static_cast<DeviceId>(problem.devices.size());
  TensorId largest = 0;
  for (std::size_t t = 1; t < problem.tensors.size(); ++t) {
    if (problem.tensors[t].size > problem.tensors[largest].size) largest = static_cast<TensorId>(t);
  }
  std::map<std::int32_t, std::vector<std::pair<Nanoseconds, DeviceId>>>
      near;  // by route from the host
  for (DeviceId s = 0; s < devices && !problem.tensors.empty(); ++s) {
    const std::int32_t first = problem.RouteOf(kHost, s), on = problem.RouteOf(s, device);
    if (s == device || first == kNone || on == kNone || first == down) continue;
    if (instance.UsesBus(on)) continue;
    near[first].emplace_back(problem.TransferTime(largest, on), s);
  }
  std::vector<std::pair<Nanoseconds, DeviceId>> chosen;
  for (auto& [route, found] : near) {
    std::sort(found.begin(), found.end());
    found.resize(std::min<std::size_t>(2, found.size()));
    chosen.insert(chosen.end(), found.begin(), found.end());
  }
  if (chosen.size() > kMostTransits) {
    std::sort(chosen.begin(), chosen.end());
    chosen.resize(kMostTransits);
  }
  std::vector<DeviceId> transits;
  for (const auto& [duration, s] : chosen) transits.push_back(s);
  return transits;
}

std::vector<bool> BusesOf(const simulate::Problem& problem) {
  std::vector<bool> is_bus(problem.channels, false);
  for (std::size_t d = 0; d < problem.devices.size(); ++d) {
    const std::int32_t route = problem.RouteOf(kHost, static_cast<DeviceId>(d));
    if (route == kNone) continue;
    for (ChannelId c : problem.route_channels[route]) is_bus[c] = true;
  }
  return is_bus;
}

}  // namespace

Instance::Instance(const simulate::Problem& given) : problem(given) {
  std::vector<std::vector<std::int32_t>> before(operators()), after(operators()),
      reading(tensors());
  for (std::size_t o = 0; o < operators(); ++o) {
    for (TensorId t : problem.inputs[o]) {
      reading[t].push_back(static_cast<OperatorId>(o));
      const OperatorId producer = problem.tensors[t].producer;
      if (producer != kNone) before[o].push_back(producer);
    }
    SortDistinct(&before[o]);
    for (OperatorId p : before[o]) after[p].push_back(static_cast<OperatorId>(o));
  }
  predecessors = ToRows(before);
  successors = ToRows(after);
  readers = ToRows(reading);
  is_bus = BusesOf(problem);
  for (std::size_t d = 0; d < devices(); ++d) {
    const auto device = static_cast<DeviceId>(d);
    for (DeviceId s : TransitsOf(*this, device)) transits.value.push_back(s);
    transits.EndRow();
    if (problem.devices[d].shares_host_memory) sharing.push_back(device);
  }
  FindLongestPaths(this);
}

bool Instance::UsesBus(std::int32_t route) const {
  return std::ranges::any_of(problem.route_channels[route],
                             [this](ChannelId c) { return is_bus[c]; });
}

}  // namespace tvm_sched::search
