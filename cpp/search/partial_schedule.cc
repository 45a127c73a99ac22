#include "partial_schedule.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tvm_sched::search {

PartialSchedule::PartialSchedule(const Instance& instance, double memory_scale, bool backfill)
    : instance_(&instance), backfill_(backfill) {
  for (const simulate::Device& device : instance.problem.devices) {
    memory_.push_back(
        Bytes{static_cast<int64_t>(static_cast<double>(device.memory.count) * memory_scale)});
  }
  at_ = {instance.tensors(), instance.devices(), kNever};
  holders_.resize(instance.tensors());
  gaps_.resize(instance.problem.channels);
  Clear();
}

void PartialSchedule::Clear() {
  events_.clear();
  starts_.clear();
  ends_.clear();
  latency_ = {};
  device_free_.assign(instance_->devices(), {});
  channel_free_.assign(instance_->problem.channels, {});
  for (auto& gaps : gaps_) gaps.clear();
  for (auto [tensor, device] : touched_) {
    at_(tensor, device) = kNever;
    holders_[tensor].clear();
  }
  touched_.clear();
  placed_.assign(instance_->operators(), kNone);
  readers_left_.resize(instance_->tensors());
  for (size_t t = 0; t < readers_left_.size(); ++t) {
    readers_left_[t] = static_cast<int32_t>(instance_->readers[t].size()) +
                       (instance_->problem.tensors[t].stays ? 1 : 0);
  }
  parameters_.assign(instance_->devices(), 0);
  live_.assign(instance_->devices(), 0);
  peak_.assign(instance_->devices(), 0);
}

bool PartialSchedule::Reads(const Event& run, TensorId tensor) const {
  if (!instance_->OnHost(tensor)) return true;
  return !run.is_direct() && !instance_->problem.devices[run.device].shares_host_memory;
}

bool PartialSchedule::IsSource(TensorId tensor, DeviceId source) const {
  return at_(tensor, source) != kNever ||
         (instance_->OnHost(tensor) && instance_->problem.devices[source].shares_host_memory);
}

bool PartialSchedule::CanMove(const Event& move) const {
  if (at_(move.item, move.device) != kNever) return false;
  return move.source == kHost || IsSource(move.item, move.source);
}

Nanoseconds PartialSchedule::Append(const Event& event) {
  Nanoseconds start;
  const Nanoseconds end = event.is_run() ? RunOperator(event, &start) : MoveTensor(event, &start);
  events_.push_back(event);
  starts_.push_back(start);
  ends_.push_back(end);
  return end;
}

Nanoseconds PartialSchedule::RunOperator(const Event& run, Nanoseconds* begin) {
  const simulate::Problem& problem = instance_->problem;
  Nanoseconds start = device_free_[run.device];
  for (TensorId t : problem.inputs[run.item]) {
    if (Reads(run, t)) start = std::max(start, at_(t, run.device));
  }
  const int32_t bus = run.is_direct() ? problem.RouteOf(kHost, run.device) : kNone;
  if (bus != kNone) {
    const Nanoseconds duration = problem.host_read_time(run.item, run.device);
    start = FirstStart(bus, start, duration);
    Occupy(bus, start, start + duration);
  }
  const Nanoseconds end = start + instance_->Duration(run.item, run.device, run.is_direct());
  device_free_[run.device] = end;
  latency_ = std::max(latency_, end);
  placed_[run.item] = run.device;
  for (TensorId t : problem.outputs[run.item]) Arrive(t, run.device, end);
  Release(run.item);
  *begin = start;
  return end;
}

Nanoseconds PartialSchedule::MoveTensor(const Event& move, Nanoseconds* begin) {
  const int32_t route = instance_->problem.RouteOf(move.source, move.device);
  const Nanoseconds duration = instance_->problem.TransferTime(move.item, route);
  Nanoseconds ready{};
  if (move.source != kHost && at_(move.item, move.source) != kNever)
    ready = at_(move.item, move.source);
  const Nanoseconds start = FirstStart(route, ready, duration);
  Occupy(route, start, start + duration);
  Arrive(move.item, move.device, start + duration);
  *begin = start;
  return start + duration;
}

Nanoseconds PartialSchedule::FirstStart(int32_t route, Nanoseconds ready,
                                        Nanoseconds duration) const {
  const auto channels = instance_->problem.route_channels[route];
  for (ChannelId c : channels) ready = std::max(ready, PlannedUntil(c));
  if (backfill_ && channels.size() == 1) {
    for (const Gap& gap : gaps_[channels[0]]) {
      const Nanoseconds start = std::max(gap.begin, ready);
      if (start + duration <= gap.end) return start;
    }
  }
  for (ChannelId c : channels) ready = std::max(ready, channel_free_[c]);
  return ready;
}

Nanoseconds PartialSchedule::PlannedUntil(ChannelId channel) const {
  for (const auto& [planned, until] : planned_) {
    if (planned == channel) return until;
  }
  return {};
}

void PartialSchedule::Occupy(int32_t route, Nanoseconds start, Nanoseconds end) {
  for (ChannelId c : instance_->problem.route_channels[route]) {
    if (start >= channel_free_[c]) {
      if (backfill_ && start > channel_free_[c]) AddGap(c, {channel_free_[c], start});
      channel_free_[c] = end;
      continue;
    }
    auto& gaps = gaps_[c];
    const auto gap = std::find_if(gaps.begin(), gaps.end(),
                                  [&](const Gap& g) { return g.begin <= start && end <= g.end; });
    const Gap after{end, gap->end};
    gap->end = start;
    if (after.begin < after.end) gaps.insert(gap + 1, after);
    gaps.erase(
        std::remove_if(gaps.begin(), gaps.end(), [](const Gap& g) { return g.begin == g.end; }),
        gaps.end());
  }
}

void PartialSchedule::AddGap(ChannelId channel, Gap gap) {
  auto& gaps = gaps_[channel];
  gaps.push_back(gap);
  if (gaps.size() <= kMostGaps) return;
  const auto length = [](const Gap& g) { return g.end + -g.begin; };
  gaps.erase(std::min_element(gaps.begin(), gaps.end(),
                              [&](const Gap& a, const Gap& b) { return length(a) < length(b); }));
}

void PartialSchedule::Arrive(TensorId tensor, DeviceId device, Nanoseconds when) {
  at_(tensor, device) = when;
  holders_[tensor].push_back(device);
  touched_.emplace_back(tensor, device);
  const int64_t size = instance_->problem.tensors[tensor].size.count;
  if (instance_->OnHost(tensor)) {
    parameters_[device] += size;
  } else {
    live_[device] += size;
    peak_[device] = std::max(peak_[device], live_[device]);
  }
}

void PartialSchedule::Release(OperatorId op) {
  const simulate::Problem& problem = instance_->problem;
  const auto free = [&](TensorId t) {
    if (readers_left_[t] != 0 || instance_->OnHost(t)) return;
    for (DeviceId d : holders_[t]) live_[d] -= problem.tensors[t].size.count;
  };
  for (TensorId t : problem.inputs[op]) {
    --readers_left_[t];
    free(t);
  }
  for (TensorId t : problem.outputs[op]) free(t);
}

PartialSchedule::Way PartialSchedule::FindWay(TensorId t, DeviceId device, bool transits) const {
  const simulate::Problem& problem = instance_->problem;
  Way best;
  const bool on_host = instance_->OnHost(t);
  const int32_t down = problem.RouteOf(kHost, device);
  if (on_host && down != kNone) {
    const Nanoseconds duration = problem.TransferTime(t, down);
    best = {FirstStart(down, {}, duration) + duration, 1, {Event::Move(t, kHost, device), {}}};
  }
  const auto consider = [&](DeviceId s, Nanoseconds ready) {
    const int32_t route = s == device ? kNone : problem.RouteOf(s, device);
    if (route == kNone) return;
    const Nanoseconds duration = problem.TransferTime(t, route);
    const Nanoseconds arrival = FirstStart(route, ready, duration) + duration;
    if (arrival < best.arrival) best = {arrival, 1, {Event::Move(t, s, device), {}}};
  };
  for (DeviceId s : holders_[t]) consider(s, at_(t, s));
  if (!on_host) return best;
  for (DeviceId s : instance_->sharing) consider(s, {});
  if (!transits) return best;
  for (DeviceId s : instance_->transits[device]) {
    if (at_(t, s) != kNever) continue;
    const int32_t first = problem.RouteOf(kHost, s), on = problem.RouteOf(s, device);
    const Nanoseconds loading = problem.TransferTime(t, first);
    const Nanoseconds duration = problem.TransferTime(t, on);
    const Nanoseconds loaded = FirstStart(first, {}, loading) + loading;
    const Nanoseconds arrival = FirstStart(on, loaded, duration) + duration;
    if (arrival < best.arrival) {
      best = {arrival, 2, {Event::Move(t, kHost, s), Event::Move(t, s, device)}};
    }
  }
  return best;
}

void PartialSchedule::Reserve(const Way& way) {
  const simulate::Problem& problem = instance_->problem;
  Nanoseconds ready{};
  for (int i = 0; i < way.hops; ++i) {
    const Event& move = way.move[i];
    const int32_t route = problem.RouteOf(move.source, move.device);
    if (i == 0 && move.source != kHost && at_(move.item, move.source) != kNever) {
      ready = at_(move.item, move.source);
    }
    const Nanoseconds duration = problem.TransferTime(move.item, route);
    ready = FirstStart(route, ready, duration) + duration;
    for (ChannelId c : problem.route_channels[route]) {
      const auto found = std::find_if(planned_.begin(), planned_.end(),
                                      [&](const auto& entry) { return entry.first == c; });
      if (found == planned_.end()) {
        planned_.emplace_back(c, ready);
      } else {
        found->second = ready;
      }
    }
  }
}

bool PartialSchedule::FastestWay(TensorId tensor, DeviceId device, Sequence* moves) {
  const Way way = FindWay(tensor, device, true);
  moves->assign(way.move, way.move + way.hops);
  return way.hops > 0;
}

bool PartialSchedule::TryPlan(const Event& run, bool transits, Plan* plan) {
  const simulate::Problem& problem = instance_->problem;
  plan->moves.clear();
  plan->run = run;
  planned_.clear();
  Nanoseconds ready = device_free_[run.device];
  bool possible = true;
  for (TensorId t : problem.inputs[run.item]) {
    if (!Reads(run, t)) continue;
    if (at_(t, run.device) != kNever) {
      ready = std::max(ready, at_(t, run.device));
      continue;
    }
    const Way way = FindWay(t, run.device, transits);
    if (way.hops == 0) {
      possible = false;
      break;
    }
    Reserve(way);
    plan->moves.insert(plan->moves.end(), way.move, way.move + way.hops);
    ready = std::max(ready, way.arrival);
  }
  const int32_t bus = run.is_direct() ? problem.RouteOf(kHost, run.device) : kNone;
  if (bus != kNone) {
    ready = FirstStart(bus, ready, problem.host_read_time(run.item, run.device));
  }
  planned_.clear();
  if (possible) plan->end = ready + instance_->Duration(run.item, run.device, run.is_direct());
  return possible;
}

bool PartialSchedule::MakePlan(OperatorId op, DeviceId device, bool direct, Plan* plan) {
  if (instance_->Duration(op, device, direct) == kNever) return false;
  const Event run = Event::Run(op, device, direct);
  if (!TryPlan(run, true, plan)) return false;
  if (PlanFits(*plan)) return true;
  if (instance_->transits[device].empty()) return false;
  return TryPlan(run, false, plan) && PlanFits(*plan);  // a neighbour may lack the memory
}

bool PartialSchedule::PlanFits(const Plan& plan) {
  const simulate::Problem& problem = instance_->problem;
  brought_.clear();
  const auto bring = [&](DeviceId device, int64_t parameters, int64_t activations) {
    for (auto& [known, bytes] : brought_) {
      if (known == device) {
        bytes.first += parameters;
        bytes.second += activations;
        return;
      }
    }
    brought_.push_back({device, {parameters, activations}});
  };
  for (const Event& move : plan.moves) {
    const int64_t size = problem.tensors[move.item].size.count;
    const bool host = instance_->OnHost(move.item);
    bring(move.device, host ? size : 0, host ? 0 : size);
  }
  for (TensorId t : problem.outputs[plan.run.item]) {
    bring(plan.run.device, 0, problem.tensors[t].size.count);
  }
  return std::all_of(brought_.begin(), brought_.end(), [&](const auto& entry) {
    const auto& [d, bytes] = entry;
    const int64_t peak = std::max(peak_[d], live_[d] + bytes.second);
    return parameters_[d] + bytes.first + peak <= memory_[d].count;
  });
}

void PartialSchedule::Place(const Plan& plan) {
  for (const Event& move : plan.moves) Append(move);
  Append(plan.run);
}

bool PartialSchedule::Fits() const {
  for (size_t d = 0; d < memory_.size(); ++d) {
    if (parameters_[d] + peak_[d] > memory_[d].count) return false;
  }
  return true;
}

Sequence PartialSchedule::SortedByStart() const {
  std::vector<size_t> order(events_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(starts_[a], ends_[a], a) < std::tuple(starts_[b], ends_[b], b);
  });
  Sequence sorted;
  sorted.reserve(order.size());
  for (size_t i : order) sorted.push_back(events_[i]);
  return sorted;
}

}  // namespace tvm_sched::search
