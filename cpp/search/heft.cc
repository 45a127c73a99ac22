#include "heft.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "gaps.h"

namespace tvm_sched::search {
namespace {

using simulate::kHost;
using simulate::kNever;
using simulate::kNone;
using simulate::Problem;
using simulate::TensorId;
using simulate::TransferKind;

struct TimedTransfer {
  simulate::Transfer transfer;
  int64_t begin, end;
  int32_t route;
};

/*! \brief Where an operator could run: its times, and the transfers that it needs for that. */
struct Choice {
  simulate::Placement placement;
  int64_t begin = kFar, end = kFar;
  std::vector<TimedTransfer> transfers;
};

class Inserter {
 public:
  explicit Inserter(const Problem& problem)
      : problem_(problem),
        device_(problem.devices.size()),
        channel_(problem.channels),
        at_(problem.tensors.size(), problem.devices.size(), kFar) {
    for (size_t d = 0; d < problem.devices.size(); ++d) {
      for (size_t t = 0; t < problem.tensors.size(); ++t) {
        if (problem.devices[d].shares_host_memory && problem.tensors[t].in_host_memory())
          at_(t, d) = 0;
      }
    }
  }

  /*! \brief The earliest end there in either mode; its end is kFar where it cannot run. */
  Choice Try(OperatorId op, DeviceId device) {
    Choice best = Try(op, device, false), direct = Try(op, device, true);
    return direct.end < best.end ? direct : best;
  }

  void Place(const Choice& choice) {
    for (const TimedTransfer& move : choice.transfers) {
      Occupy(move);
      if (move.transfer.kind != TransferKind::kHostRead)
        at_(move.transfer.item, move.transfer.device) = move.end;
      transfers_.push_back(move);
    }
    const auto [op, device] = std::pair(choice.placement.op, choice.placement.device);
    device_[device].Occupy(choice.begin, choice.end);
    for (TensorId t : problem_.outputs[op]) at_(t, device) = choice.end;
    placements_.push_back({choice.begin, choice.placement});
  }

  /*! \brief All that was placed, in order of time. */
  simulate::Schedule Schedule() && {
    std::ranges::stable_sort(placements_, {}, &std::pair<int64_t, simulate::Placement>::first);
    std::ranges::stable_sort(transfers_, {},
                             [](const TimedTransfer& x) { return std::pair(x.begin, x.end); });
    simulate::Schedule schedule;
    for (const auto& [begin, placement] : placements_) schedule.placements.push_back(placement);
    for (const TimedTransfer& move : transfers_) schedule.transfers.push_back(move.transfer);
    return schedule;
  }

 private:
  Choice Try(OperatorId op, DeviceId device, bool direct) {
    Choice choice;
    choice.placement = {op, device, direct};
    const auto time = (direct ? problem_.direct_time : problem_.operator_time)(op, device);
    if (time == kNever) return choice;
    int64_t ready = 0;
    for (TensorId t : problem_.inputs[op]) {
      if (direct && problem_.tensors[t].in_host_memory()) continue;
      int64_t there = at_(t, device);
      if (there == kFar) {
        const TimedTransfer move = Fastest(t, device);
        there = move.end;
        if (there == kFar) {
          ready = kFar;
          break;
        }
        Occupy(move);
        choice.transfers.push_back(move);
      }
      ready = std::max(ready, there);
    }
    if (ready != kFar) {
      choice.begin =
          direct ? EarliestDirect(op, device, ready) : device_[device].Earliest(ready, time.count);
      choice.end = choice.begin + time.count;
    }
    for (const TimedTransfer& move : choice.transfers) Release(move);
    if (direct && ready != kFar) {
      choice.transfers.push_back({{TransferKind::kHostRead, op, kHost, device},
                                  choice.begin,
                                  choice.begin + problem_.host_read_time(op, device).count,
                                  problem_.RouteOf(kHost, device)});
    }
    return choice;
  }

  /*! \brief The first moment at which device and bus are both free for long enough. */
  int64_t EarliestDirect(OperatorId op, DeviceId device, int64_t ready) const {
    const int32_t bus = problem_.RouteOf(kHost, device);
    const int64_t reading = problem_.host_read_time(op, device).count;
    const int64_t time = problem_.direct_time(op, device).count;
    for (int64_t start = ready;;) {
      const int64_t after = EarliestOnRoute(bus, device_[device].Earliest(start, time), reading);
      if (after == start) return start;
      start = after;
    }
  }

  TimedTransfer Fastest(TensorId tensor, DeviceId device) const {
    TimedTransfer best{{}, kFar, kFar, kNone};
    auto consider = [&](DeviceId source, int64_t ready) {
      const int32_t route = problem_.RouteOf(source, device);
      if (route == kNone) return;
      const int64_t time = problem_.TransferTime(tensor, route).count;
      const int64_t begin = EarliestOnRoute(route, ready, time);
      if (begin + time >= best.end) return;
      const auto kind = source == kHost ? TransferKind::kLoad : TransferKind::kCopy;
      best = {{kind, tensor, source, device}, begin, begin + time, route};
    };
    if (problem_.tensors[tensor].in_host_memory()) consider(kHost, 0);
    for (size_t d = 0; d < problem_.devices.size(); ++d) {
      if (at_(tensor, d) != kFar) consider(static_cast<DeviceId>(d), at_(tensor, d));
    }
    return best;
  }

  int64_t EarliestOnRoute(int32_t route, int64_t ready, int64_t duration) const {
    for (int64_t start = ready;;) {
      int64_t after = start;
      for (simulate::ChannelId c : problem_.route_channels[route])
        after = channel_[c].Earliest(after, duration);
      if (after == start) return start;
      start = after;
    }
  }

  void Occupy(const TimedTransfer& move) {
    for (simulate::ChannelId c : problem_.route_channels[move.route])
      channel_[c].Occupy(move.begin, move.end);
  }

  void Release(const TimedTransfer& move) {
    for (simulate::ChannelId c : problem_.route_channels[move.route])
      channel_[c].Release(move.begin, move.end);
  }

  const Problem& problem_;
  std::vector<Gaps> device_, channel_;
  /*! \brief By tensor and device; kFar where it is not. */
  simulate::Matrix<int64_t> at_;
  std::vector<std::pair<int64_t, simulate::Placement>> placements_;
  std::vector<TimedTransfer> transfers_;
};

/*! \brief PEFT's optimistic cost table, by operator and device: the least way from the end of an
 * operator on the device to the end of the run. */
simulate::Matrix<double> OptimisticCosts(const TaskGraph& graph) {
  simulate::Matrix<double> table(graph.size(), graph.devices(), 0);
  const auto& order = graph.TopologicalOrder();
  for (auto o = order.rbegin(); o != order.rend(); ++o) {
    for (size_t d = 0; d < graph.devices(); ++d) {
      for (const Neighbour& next : graph.Successors(*o)) {
        double least = std::numeric_limits<double>::infinity();
        for (size_t other = 0; other < graph.devices(); ++other) {
          const int64_t time = graph.Time(next.op, static_cast<DeviceId>(other));
          const double way = other == d ? 0 : graph.MeanCommunication(next.edge);
          least = std::min(least, table(next.op, other) + static_cast<double>(time) + way);
        }
        table(*o, d) = std::max(table(*o, d), least);
      }
    }
  }
  return table;
}

}  // namespace

simulate::Schedule ListSchedule(const Problem& problem, const TaskGraph& graph, ListMethod method) {
  const bool peft = method == ListMethod::kPeft;
  const auto table = peft ? OptimisticCosts(graph) : simulate::Matrix<double>{};
  std::vector<double> rank = peft ? std::vector<double>(graph.size()) : graph.UpwardRank();
  for (size_t o = 0; peft && o < graph.size(); ++o) {
    for (size_t d = 0; d < graph.devices(); ++d)
      rank[o] += table(o, d) / static_cast<double>(graph.devices());
  }
  Inserter inserter(problem);
  std::vector<size_t> waits(graph.size());
  std::priority_queue<std::pair<double, OperatorId>> free;  // the higher rank, then the later one
  for (size_t o = 0; o < graph.size(); ++o) {
    waits[o] = graph.Predecessors(static_cast<OperatorId>(o)).size();
    if (waits[o] == 0) free.push({rank[o], -static_cast<OperatorId>(o)});
  }
  while (!free.empty()) {
    const OperatorId op = -free.top().second;
    free.pop();
    Choice best;
    double least = std::numeric_limits<double>::infinity();
    for (size_t d = 0; d < graph.devices(); ++d) {
      Choice choice = inserter.Try(op, static_cast<DeviceId>(d));
      if (choice.end == kFar) continue;
      const double value = static_cast<double>(choice.end) + (peft ? table(op, d) : 0);
      if (value >= least) continue;
      least = value;
      best = std::move(choice);
    }
    if (best.end == kFar) return {};
    inserter.Place(best);
    for (const Neighbour& next : graph.Successors(op)) {
      if (--waits[next.op] == 0) free.push({rank[next.op], -next.op});
    }
  }
  return std::move(inserter).Schedule();
}

}  // namespace tvm_sched::search
