#include "simulate/simulate.h"

#include <algorithm>

#include "simulate/overlapping_streams.h"
#include "simulate/precedence.h"

namespace tvm_sched::simulate {
namespace {

/// Longest paths by depth-first search over predecessors; an event met again while open
/// closes a cycle.
class Sweep {
 public:
  Sweep(const Problem& problem, const Schedule& schedule, const Arrivals& arrivals)
      : problem_(problem),
        schedule_(schedule),
        arrivals_(arrivals),
        precedence_(problem, schedule, arrivals) {
    times_.start.resize(schedule.events());
    times_.end.resize(schedule.events());
    state_.assign(schedule.events(), State::kNew);
  }

  /// Fills `times`; returns the events of a cycle, or nothing.
  std::vector<EventId> Run(Times* times) {
    for (std::size_t event = 0; event < schedule_.events(); ++event) {
      std::vector<EventId> cycle = Visit(precedence_.Node(static_cast<EventId>(event)));
      if (!cycle.empty()) return cycle;
    }
    for (std::size_t p = 0; p < schedule_.placements.size(); ++p) {
      times_.latency = std::max(times_.latency, times_.end[p]);
    }
    *times = std::move(times_);
    return {};
  }

 private:
  enum class State : std::uint8_t { kNew, kOpen, kDone };
  struct Frame {
    EventId node;
    std::size_t next;
  };

  std::vector<EventId> Visit(EventId root) {
    if (state_[root] == State::kDone) return {};
    Open(root);
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      const std::span<const EventId> before = precedence_.Before(frame.node);
      if (frame.next == before.size()) {
        TimeEvent(frame.node, before);
        continue;
      }
      const EventId node = precedence_.Node(before[frame.next++]);
      if (state_[node] == State::kOpen) return Cycle(node);
      if (state_[node] == State::kNew) Open(node);
    }
    return {};
  }

  void Open(EventId node) {
    state_[node] = State::kOpen;
    stack_.push_back({node, 0});
  }

  void TimeEvent(EventId node, std::span<const EventId> before) {
    Nanoseconds start;
    for (EventId event : before) start = std::max(start, times_.end[event]);
    times_.start[node] = start;
    const auto placements = static_cast<EventId>(schedule_.placements.size());
    if (node < placements) {
      const Placement& placement = schedule_.placements[node];
      if (!precedence_.Members(node).empty()) return TimeStage(node, start);
      times_.end[node] = start + TimeAlone(problem_, placement);
      if (placement.direct) {
        const EventId read = placements + arrivals_.host_read[node];
        times_.start[read] = start;
        times_.end[read] = start + problem_.host_read_time(placement.op, placement.device);
      }
    } else {
      const Transfer& transfer = schedule_.transfers[node - placements];
      if (arrivals_.resident[node - placements]) return Done(node, start);
      const DeviceId source = transfer.kind == TransferKind::kCopy ? transfer.source : kHost;
      times_.end[node] =
          start + problem_.TransferTime(transfer.item, problem_.RouteOf(source, transfer.device));
    }
    Done(node, times_.end[node]);
  }

  void TimeStage(EventId leader, Nanoseconds start) {
    const Nanoseconds end = start + precedence_.StageTime(leader);
    for (std::int32_t p : precedence_.Members(leader)) {
      times_.start[p] = start;
      times_.end[p] = end;
    }
    Done(leader, end);
  }

  void Done(EventId node, Nanoseconds end) {
    times_.end[node] = end;
    state_[node] = State::kDone;
    stack_.pop_back();
  }

  /// The open nodes from `node` up, each waiting for the next; turned round, for the one
  /// before.
  std::vector<EventId> Cycle(EventId node) const {
    std::vector<EventId> cycle;
    for (auto frame = stack_.rbegin(); frame != stack_.rend(); ++frame) {
      cycle.push_back(frame->node);
      if (frame->node == node) break;
    }
    return cycle;
  }

  const Problem& problem_;
  const Schedule& schedule_;
  const Arrivals& arrivals_;
  const Precedence precedence_;
  Times times_;
  std::vector<State> state_;
  std::vector<Frame> stack_;
};

}  // namespace

Simulation Simulate(const Problem& problem, const Schedule& schedule, std::size_t limit) {
  CheckIndices(problem, schedule);
  Simulation result;
  result.arrivals = FindArrivals(problem, schedule, limit, &result.violations);
  if (!result.violations.empty()) return result;
  Violation deadlock{Rule::kDeadlock};
  deadlock.cycle = Sweep(problem, schedule, result.arrivals).Run(&result.times);
  if (!deadlock.cycle.empty()) {
    result.violations.push_back(std::move(deadlock));
  } else if (std::ranges::find(result.arrivals.overlaps, true) != result.arrivals.overlaps.end()) {
    result.times = OverlapStreams(problem, schedule, result.arrivals);
  }
  return result;
}

Simulation SimulateOrThrow(const Problem& problem, const Schedule& schedule) {
  Simulation result = Simulate(problem, schedule, /*limit=*/1);
  if (!result.violations.empty()) throw BrokenRule(std::move(result.violations.front()));
  return result;
}

}  // namespace tvm_sched::simulate
