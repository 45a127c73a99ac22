// The precedence graph of a schedule (docs/model.md, rule 4).
#ifndef TVM_SCHED_SIMULATE_PRECEDENCE_H_
#define TVM_SCHED_SIMULATE_PRECEDENCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "simulate/problem.h"
#include "simulate/rules.h"
#include "simulate/schedule.h"

namespace tvm_sched::simulate {

/// Time of an operator that runs alone, placed like this.
inline Nanoseconds TimeAlone(const Problem& problem, const Placement& placement) {
  return (placement.direct ? problem.direct_time : problem.operator_time)(placement.op,
                                                                          placement.device);
}

/// The precedence graph of rule 4: for each event, the events whose end it waits for.
class Precedence {
 public:
  Precedence(const Problem& problem, const Schedule& schedule, const Arrivals& arrivals)
      : problem_(problem), schedule_(schedule), arrivals_(arrivals) {
    const Rows<EventId> on_channels = BeforeOnChannels();
    const std::vector<EventId> on_stream = BeforeOnStreams();
    for (std::size_t p = 0; p < schedule.placements.size(); ++p) {
      const Placement& placement = schedule.placements[p];
      Wait(on_stream[p]);
      for (TensorId t : problem.inputs[placement.op]) {
        if (ReadsFromDevice(problem, placement, t)) Read(p, arrivals.event(t, placement.device));
      }
      if (placement.direct) WaitAll(on_channels[arrivals.host_read[p]]);
      before_.EndRow();
    }
    for (std::size_t x = 0; x < schedule.transfers.size(); ++x) {
      const Transfer& transfer = schedule.transfers[x];
      if (transfer.kind != TransferKind::kHostRead) WaitAll(on_channels[x]);
      if (transfer.kind == TransferKind::kCopy)
        Wait(arrivals.event(transfer.item, transfer.source));
      before_.EndRow();
    }
    GatherStages();
  }

  /// Events whose end `event` waits for; a host read has none of its own, it is its
  /// operator's node.
  std::span<const EventId> Before(EventId event) const { return before_[event]; }

  /// The node of an event: itself, the operator of a host read, the first operator of a
  /// stage.
  EventId Node(EventId event) const {
    const auto placements = static_cast<EventId>(schedule_.placements.size());
    if (event < placements) return arrivals_.leader[event];
    const Transfer& transfer = schedule_.transfers[event - placements];
    return transfer.kind == TransferKind::kHostRead ? arrivals_.placement[transfer.item] : event;
  }

  /// Placements of the stage that begins with `leader`; empty for all others.
  std::span<const std::int32_t> Members(EventId leader) const {
    if (members_.size() == 0 || leader >= static_cast<EventId>(members_.size())) return {};
    return members_[leader];
  }

  /// From the common start of the stage that begins with `leader` to its common end.
  Nanoseconds StageTime(EventId leader) const {
    std::vector<Member> members;
    for (std::int32_t p : Members(leader)) {
      const Placement& placement = schedule_.placements[p];
      members.push_back({placement.op, placement.stream, TimeAlone(problem_, placement)});
    }
    return problem_.concurrency.StageTime(schedule_.placements[leader].device, members);
  }

 private:
  void Wait(EventId event) {
    if (event >= 0)
      before_.value.push_back(event);  // negative: nothing, or in place from the start
  }

  void WaitAll(std::span<const EventId> events) {
    before_.value.insert(before_.value.end(), events.begin(), events.end());
  }

  /// A reader waits for what brings its tensor; within a stage, for an operator before it on
  /// its stream it need not.
  void Read(std::size_t reader, EventId event) {
    if (event >= 0 && event < static_cast<EventId>(reader)) {
      const Placement &from = schedule_.placements[event], &to = schedule_.placements[reader];
      if (SameStage(from, to) && from.stream == to.stream) return;
    }
    Wait(event);
  }

  /// For each placement, the one before it on its device, or on its stream where streams
  /// overlap; within a stage none.
  std::vector<EventId> BeforeOnStreams() const {
    std::map<std::pair<DeviceId, std::int32_t>, EventId> overlapping;
    std::vector<EventId> last(problem_.devices.size(), kNone);
    std::vector<EventId> before(schedule_.placements.size());
    for (std::size_t p = 0; p < before.size(); ++p) {
      const Placement& placement = schedule_.placements[p];
      const bool overlaps = arrivals_.overlaps[placement.device];
      EventId& slot =
          overlaps
              ? overlapping.try_emplace({placement.device, placement.stream}, kNone).first->second
              : last[placement.device];
      before[p] = slot;
      if (slot != kNone && SameStage(schedule_.placements[slot], placement)) before[p] = kNone;
      slot = static_cast<EventId>(p);
    }
    return before;
  }

  /// Makes each stage one node: its first operator waits for all that its operators wait
  /// for.
  void GatherStages() {
    const std::size_t placements = schedule_.placements.size();
    bool any = false;
    for (std::size_t p = 0; p < placements; ++p) any |= schedule_.placements[p].stage > 0;
    if (!any) return;
    std::vector<std::vector<std::int32_t>> stages(placements);
    for (std::size_t p = 0; p < placements; ++p) {
      if (schedule_.placements[p].stage > 0)
        stages[arrivals_.leader[p]].push_back(static_cast<std::int32_t>(p));
    }
    const Rows<EventId> single = std::exchange(before_, {});
    for (std::size_t event = 0; event < single.size(); ++event) {
      if (event >= placements || stages[event].empty()) {
        WaitAll(single[event]);
      } else {
        for (std::int32_t p : stages[event]) WaitAll(single[p]);
      }
      before_.EndRow();
    }
    for (const auto& stage : stages) {
      members_.value.insert(members_.value.end(), stage.begin(), stage.end());
      members_.EndRow();
    }
  }

  /// For each transfer, the one before it on each of its channels.
  Rows<EventId> BeforeOnChannels() const {
    Rows<EventId> before;
    std::vector<EventId> last(problem_.channels, kNone);
    for (std::size_t x = 0; x < schedule_.transfers.size(); ++x) {
      const Transfer& transfer = schedule_.transfers[x];
      const DeviceId source = transfer.kind == TransferKind::kCopy ? transfer.source : kHost;
      const std::int32_t route = problem_.RouteOf(source, transfer.device);
      if (route != kNone && !arrivals_.resident[x]) {
        for (ChannelId channel : problem_.route_channels[route]) {
          if (last[channel] != kNone) before.value.push_back(last[channel]);
          last[channel] = static_cast<EventId>(schedule_.placements.size() + x);
        }
      }
      before.EndRow();
    }
    return before;
  }

  const Problem& problem_;
  const Schedule& schedule_;
  const Arrivals& arrivals_;
  Rows<EventId> before_;
  Rows<std::int32_t> members_;
};

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_PRECEDENCE_H_
