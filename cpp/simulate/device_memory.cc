#include "simulate/device_memory.h"

#include <algorithm>

namespace tvm_sched::simulate {
namespace {

struct Change {
  Nanoseconds time;
  Bytes bytes;
  // Frees are negative and so come first among the changes of one moment.
  auto operator<=>(const Change&) const = default;
};

/// By tensor and device: end of the last kernel or copy that reads the tensor there.
Matrix<Nanoseconds> LastReads(const Problem& problem, const Schedule& schedule,
                              const Times& times) {
  Matrix<Nanoseconds> last(problem.tensors.size(), problem.devices.size(), Nanoseconds{});
  auto read = [&](TensorId tensor, DeviceId device, Nanoseconds end) {
    last(tensor, device) = std::max(last(tensor, device), end);
  };
  for (std::size_t p = 0; p < schedule.placements.size(); ++p) {
    const Placement& placement = schedule.placements[p];
    for (TensorId t : problem.inputs[placement.op]) {
      if (ReadsFromDevice(problem, placement, t)) read(t, placement.device, times.end[p]);
    }
  }
  for (std::size_t x = 0; x < schedule.transfers.size(); ++x) {
    const Transfer& transfer = schedule.transfers[x];
    if (transfer.kind == TransferKind::kCopy) {
      read(transfer.item, transfer.source, times.end[schedule.placements.size() + x]);
    }
  }
  return last;
}

}  // namespace

std::vector<Holding> FindHoldings(const Problem& problem, const Schedule& schedule,
                                  const Simulation& simulation) {
  const Times& times = simulation.times;
  const Matrix<Nanoseconds> last = LastReads(problem, schedule, times);
  std::vector<Holding> holdings;
  holdings.reserve(schedule.events());
  auto hold = [&](TensorId tensor, DeviceId device, std::size_t event, bool evict = false) {
    const bool stays = problem.tensors[tensor].stays && !evict;
    const Nanoseconds end = stays ? kNever : std::max(times.end[event], last(tensor, device));
    if (problem.tensors[tensor].size > Bytes{} && times.start[event] < end) {
      holdings.push_back({tensor, device, times.start[event], end});
    }
  };
  for (std::size_t p = 0; p < schedule.placements.size(); ++p) {
    const Placement& placement = schedule.placements[p];
    for (TensorId t : problem.outputs[placement.op]) hold(t, placement.device, p);
  }
  for (std::size_t x = 0; x < schedule.transfers.size(); ++x) {
    const Transfer& transfer = schedule.transfers[x];
    if (transfer.kind == TransferKind::kHostRead) continue;
    hold(transfer.item, transfer.device, schedule.placements.size() + x, transfer.evict);
  }
  return holdings;
}

std::vector<std::vector<Level>> MemoryProfile(const Problem& problem,
                                              const std::vector<Holding>& holdings) {
  std::vector<std::vector<Change>> changes(problem.devices.size());
  for (const Holding& holding : holdings) {
    const Bytes size = problem.tensors[holding.tensor].size;
    changes[holding.device].push_back({holding.begin, size});
    if (holding.end != kNever) changes[holding.device].push_back({holding.end, -size});
  }
  std::vector<std::vector<Level>> profile(problem.devices.size());
  for (std::size_t d = 0; d < changes.size(); ++d) {
    std::sort(changes[d].begin(), changes[d].end());
    Bytes held;
    for (const Change& change : changes[d]) {
      held += change.bytes;
      if (profile[d].empty() || profile[d].back().time != change.time)
        profile[d].push_back({change.time, held});
      profile[d].back().held = held;
    }
  }
  return profile;
}

std::vector<Bytes> PeakMemory(const Problem& problem, const std::vector<Holding>& holdings) {
  std::vector<Bytes> peak(problem.devices.size());
  const std::vector<std::vector<Level>> profile = MemoryProfile(problem, holdings);
  for (std::size_t d = 0; d < profile.size(); ++d) {
    for (const Level& level : profile[d]) peak[d] = std::max(peak[d], level.held);
  }
  return peak;
}

}  // namespace tvm_sched::simulate
