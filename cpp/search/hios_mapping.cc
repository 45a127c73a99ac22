// HIOS's two ways to distribute operators over devices (Kundu and Shu, "HIOS", Algorithms 1 and 3).
#include <algorithm>

#include "search/hios.h"
#include "simulate/problem.h"

namespace tvm_sched::search {
namespace {

/// Finds, path by path, the longest valid path of the operators that have no device yet.
class LongestPaths {
 public:
  explicit LongestPaths(const TaskGraph& graph)
      : graph_(graph), taken_(graph.size()), length_(graph.size()), next_(graph.size()) {}

  bool taken(OperatorId op) const { return taken_[op]; }
  void Take(const std::vector<OperatorId>& path) {
    for (OperatorId op : path) taken_[op] = true;
  }

  /// The longest path whose inner operators have no edge from or to an operator that has a
  /// device. Edges that lead into its first and out of its last operator count.
  std::vector<OperatorId> Find() {
    const auto& order = graph_.TopologicalOrder();
    double longest = -1;
    OperatorId first = simulate::kNone;
    for (auto o = order.rbegin(); o != order.rend(); ++o) {
      if (taken_[*o]) continue;
      double into = 0, out = 0;
      bool free = true;  // may stand inside of a path
      for (const Neighbour& before : graph_.Predecessors(*o)) {
        if (!taken_[before.op]) continue;
        free = false;
        into = std::max(into, graph_.MeanCommunication(before.edge));
      }
      OperatorId next = simulate::kNone;
      double ahead = 0;
      for (const Neighbour& after : graph_.Successors(*o)) {
        const double edge = graph_.MeanCommunication(after.edge);
        if (taken_[after.op]) {
          free = false;
          out = std::max(out, edge);
        } else if (edge + length_[after.op] > ahead) {
          ahead = edge + length_[after.op];
          next = after.op;
        }
      }
      // As the first operator of a path it may go on in any case; inside of one only where free.
      const double start = into + graph_.MeanTime(*o) + std::max(out, ahead);
      if (start > longest) {
        longest = start;
        first = *o;
        first_next_ = ahead > out ? next : simulate::kNone;
      }
      const bool goes_on = free && ahead > out;
      length_[*o] = graph_.MeanTime(*o) + (goes_on ? ahead : out);
      next_[*o] = goes_on ? next : simulate::kNone;
    }
    std::vector<OperatorId> path;
    if (first == simulate::kNone) return path;
    path.push_back(first);
    for (OperatorId o = first_next_; o != simulate::kNone; o = next_[o]) path.push_back(o);
    return path;
  }

 private:
  const TaskGraph& graph_;
  std::vector<bool> taken_;
  /// From the start of an operator that stands inside or at the end of a path.
  std::vector<double> length_;
  std::vector<OperatorId> next_;
  OperatorId first_next_ = simulate::kNone;
};

}  // namespace

std::int64_t LatencyOf(const TaskGraph& graph, const std::vector<OperatorId>& order,
                       const std::vector<DeviceId>& device) {
  std::vector<std::int64_t> free(graph.devices()), end(graph.size());
  std::int64_t latency = 0;
  for (OperatorId o : order) {
    const DeviceId d = device[o];
    if (d == simulate::kNone) continue;
    std::int64_t start = free[d];
    for (const Neighbour& before : graph.Predecessors(o)) {
      if (device[before.op] == simulate::kNone) continue;
      start = std::max(start,
                       Add(end[before.op], graph.Communication(before.edge, device[before.op], d)));
    }
    end[o] = free[d] = Add(start, graph.Time(o, d));
    latency = std::max(latency, end[o]);
  }
  return latency;
}

std::vector<DeviceId> MapLongestPaths(const TaskGraph& graph, const Progress& progress) {
  const std::vector<OperatorId> order = graph.PriorityOrder();
  std::vector<DeviceId> device(graph.size(), simulate::kNone);
  LongestPaths paths(graph);
  std::int64_t done = 0;
  for (std::vector<OperatorId> path = paths.Find(); !path.empty(); path = paths.Find()) {
    paths.Take(path);
    std::int64_t least = kFar;
    DeviceId chosen = 0;
    for (std::size_t d = 0; d < graph.devices(); ++d) {
      for (OperatorId o : path) device[o] = static_cast<DeviceId>(d);
      const std::int64_t latency = LatencyOf(graph, order, device);
      if (latency >= least) continue;
      least = latency;
      chosen = static_cast<DeviceId>(d);
    }
    for (OperatorId o : path) device[o] = chosen;
    done += static_cast<std::int64_t>(path.size());
    progress(done, static_cast<std::int64_t>(graph.size()));
  }
  return device;
}

std::vector<DeviceId> MapByRecords(const TaskGraph& graph, bool first_anywhere,
                                   const Progress& progress) {
  const std::vector<OperatorId> order = graph.PriorityOrder();
  const std::size_t count = order.size(), devices = graph.devices();
  simulate::Matrix<std::int64_t> least(count, devices, kFar);
  simulate::Matrix<DeviceId> before(count, devices, 0);
  std::vector<std::int64_t> end(count);
  std::vector<DeviceId> device(count, simulate::kNone);
  std::vector<std::int64_t> free(devices);
  // The schedule that was recorded for the operators up to `last` when that one is on device `d`.
  auto recall = [&](std::size_t last, DeviceId d) {
    std::ranges::fill(free, 0);
    for (std::size_t l = last + 1; l-- > 0; d = before(l, d)) {
      end[order[l]] = least(l, d);
      device[order[l]] = d;
      free[d] = std::max(free[d], least(l, d));
    }
  };
  for (std::size_t i = 0; i < count; ++i) {
    const OperatorId o = order[i];
    // The paper numbers from 1: the i-th operator may be on the first i devices.
    const std::size_t tried = first_anywhere ? devices : std::min(devices, i + 1);
    if (i == 0) {
      for (std::size_t d = 0; d < tried; ++d) least(0, d) = graph.Time(o, static_cast<DeviceId>(d));
      continue;
    }
    for (std::size_t k = 0; k < devices; ++k) {
      if (least(i - 1, k) >= kFar) continue;  // among them: the devices not tried for i - 1
      recall(i - 1, static_cast<DeviceId>(k));
      for (std::size_t d = 0; d < tried; ++d) {
        std::int64_t start = free[d];
        for (const Neighbour& from : graph.Predecessors(o)) {
          start = std::max(start, Add(end[from.op], graph.Communication(from.edge, device[from.op],
                                                                        static_cast<DeviceId>(d))));
        }
        const std::int64_t ends = Add(start, graph.Time(o, static_cast<DeviceId>(d)));
        if (ends >= least(i, d)) continue;
        least(i, d) = ends;
        before(i, d) = static_cast<DeviceId>(k);
      }
    }
    if (i % 64 == 0) progress(static_cast<std::int64_t>(i), static_cast<std::int64_t>(count));
  }
  if (count == 0) return {};
  DeviceId last = 0;
  for (std::size_t d = 1; d < devices; ++d) {
    if (least(count - 1, d) < least(count - 1, last)) last = static_cast<DeviceId>(d);
  }
  recall(count - 1, last);
  return device;
}

}  // namespace tvm_sched::search
