#include "search/partial_schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace tvm_sched::search {

namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// That share of a device's memory.
Bytes Scaled(Bytes memory, double scale) {
  const double scaled = static_cast<double>(memory.count) * scale;
  return Bytes{scaled < static_cast<double>(kNoLimit) ? static_cast<std::int64_t>(scaled)
                                                      : kNoLimit};
}

std::size_t GapsOf(Growth::Insertion insertion, std::size_t for_loads) {
  if (insertion == Growth::Insertion::kAll) return Lane::kAllGaps;
  return insertion == Growth::Insertion::kLoads ? for_loads : 0;
}

}  // namespace

PartialSchedule::PartialSchedule(const Instance& instance, Growth growth)
    : instance_(&instance),
      problem_(&instance.problem),
      growth_(growth),
      device_(instance.devices(), Lane(GapsOf(growth.insertion, 0))),
      channel_(instance.problem.channels, Lane(GapsOf(growth.insertion, kMostGaps))),
      at_(instance.tensors(), instance.devices(), kNever),
      holders_(instance.tensors(), instance.devices(), kNone),
      held_(instance.tensors()) {
  for (const simulate::Device& device : instance.problem.devices) {
    memory_.push_back(Scaled(device.memory, growth.memory_scale));
  }
  Clear();
}

void PartialSchedule::Clear() {
  events_.clear();
  starts_.clear();
  ends_.clear();
  in_stage_.clear();
  latency_ = {};
  for (Lane& lane : device_) lane.Clear();
  for (Lane& lane : channel_) lane.Clear();
  for (std::size_t t = 0; t < held_.size();
       ++t) {  // not all of `at_`: most devices hold few tensors
    for (DeviceId d : Holders(static_cast<TensorId>(t))) at_(static_cast<TensorId>(t), d) = kNever;
  }
  std::ranges::fill(held_, 0);
  placed_.assign(instance_->operators(), kNone);
  if (growth_.plain) return;
  readers_left_.resize(instance_->tensors());
  for (std::size_t t = 0; t < readers_left_.size(); ++t) {
    readers_left_[t] = static_cast<std::int32_t>(instance_->readers[t].size()) +
                       (problem_->tensors[t].stays ? 1 : 0);
  }
  parameters_.assign(instance_->devices(), 0);
  live_.assign(instance_->devices(), 0);
  peak_.assign(instance_->devices(), 0);
}

bool PartialSchedule::IsSource(TensorId tensor, DeviceId source) const {
  return at_(tensor, source) != kNever ||
         (instance_->OnHost(tensor) && problem_->devices[source].shares_host_memory);
}

bool PartialSchedule::CanMove(const Event& move) const {
  if (at_(move.item, move.device) != kNever) return false;
  return move.source == kHost || IsSource(move.item, move.source);
}

Nanoseconds PartialSchedule::Append(const Event& event) {
  return event.is_run() ? RunOperator(event, InputsReady(event)) : MoveTensor(event);
}

Nanoseconds PartialSchedule::InputsReady(Event run) const {
  Nanoseconds ready{};
  for (TensorId t : problem_->inputs[run.item]) {
    if (Reads(run, t)) ready = std::max(ready, at_(t, run.device));
  }
  return ready;
}

Nanoseconds PartialSchedule::RunOperator(Event run, Nanoseconds ready) {
  const simulate::Problem& problem = *problem_;
  const Nanoseconds duration = instance_->Duration(run.item, run.device, run.is_direct());
  const Nanoseconds start = FirstRun(run, ready, duration), end = start + duration;
  const std::int32_t bus = run.is_direct() ? problem.RouteOf(kHost, run.device) : kNone;
  if (bus != kNone) Occupy(bus, start, start + problem.host_read_time(run.item, run.device));
  device_[run.device].Occupy(start, end);
  RecordRun(run, end);
  RecordEvent(run, start, end);
  return end;
}

void PartialSchedule::RecordRun(Event run, Nanoseconds end) {
  latency_ = std::max(latency_, end + problem_->Lag(run.item));
  placed_[run.item] = run.device;
  for (TensorId t : problem_->outputs[run.item]) Arrive(t, run.device, end);
  if (!growth_.plain) Release(run.item);
}

Nanoseconds PartialSchedule::MoveTensor(Event move) {
  const std::int32_t route = problem_->RouteFor(move.item, move.source, move.device);
  const Nanoseconds duration = problem_->TransferTime(move.item, route);
  Nanoseconds ready{};
  if (move.source != kHost && at_(move.item, move.source) != kNever)
    ready = at_(move.item, move.source);
  const Nanoseconds start = FirstStart(route, ready, duration);
  return MoveTensor(move, route, start, start + duration);
}

Nanoseconds PartialSchedule::MoveTensor(Event move, std::int32_t route, Nanoseconds start,
                                        Nanoseconds end) {
  Occupy(route, start, end);
  Arrive(move.item, move.device, end);
  RecordEvent(move, start, end);
  return end;
}

Nanoseconds PartialSchedule::FirstRun(Event run, Nanoseconds ready, Nanoseconds duration) const {
  const Lane& device = device_[run.device];
  Nanoseconds start = device.Earliest(ready, duration);
  const std::int32_t bus = run.is_direct() ? problem_->RouteOf(kHost, run.device) : kNone;
  if (bus == kNone) return start;
  const Nanoseconds reading = problem_->host_read_time(run.item, run.device);
  for (;;) {  // until device and bus are both free for long enough
    const Nanoseconds after = FirstStart(bus, start, reading);
    start = device.Earliest(after, duration);
    if (start == after) return start;
  }
}

Nanoseconds PartialSchedule::FirstGap(std::int32_t route, Nanoseconds ready,
                                      Nanoseconds duration) const {
  const auto channels = problem_->route_channels[route];
  if (growth_.insertion == Growth::Insertion::kAll) {
    for (Nanoseconds start = ready;;) {  // until all channels are free for long enough
      Nanoseconds after = start;
      for (ChannelId c : channels) after = channel_[c].Earliest(after, duration);
      if (after == start) return start;
      start = after;
    }
  }
  for (ChannelId c : channels) ready = std::max(ready, ReservedUntil(c));
  if (channels.size() == 1) return channel_[channels[0]].Earliest(ready, duration);
  for (ChannelId c : channels) ready = std::max(ready, channel_[c].free());
  return ready;
}

Nanoseconds PartialSchedule::ReservedUntil(ChannelId channel) const {
  for (const auto& [reserved, until] : reserved_until_) {
    if (reserved == channel) return until;
  }
  return {};
}

void PartialSchedule::Hold(TensorId tensor, DeviceId device) {
  const std::int64_t size = problem_->tensors[tensor].size.count;
  if (instance_->OnHost(tensor)) {
    parameters_[device] += size;
  } else {
    live_[device] += size;
    peak_[device] = std::max(peak_[device], live_[device]);
  }
}

void PartialSchedule::Release(OperatorId op) {
  const simulate::Problem& problem = *problem_;
  const auto free = [&](TensorId t) {
    if (readers_left_[t] != 0 || instance_->OnHost(t)) return;
    for (DeviceId d : Holders(t)) live_[d] -= problem.tensors[t].size.count;
  };
  for (TensorId t : problem.inputs[op]) {
    --readers_left_[t];
    free(t);
  }
  for (TensorId t : problem.outputs[op]) free(t);
}

PartialSchedule::Path PartialSchedule::FindPlainPath(TensorId t, DeviceId device) const {
  const simulate::Problem& problem = *problem_;
  Path best;
  const auto consider = [&](DeviceId s, Nanoseconds ready) {
    const std::int32_t route = problem.RouteFor(t, s, device);
    if (route == kNone) return;
    const Nanoseconds duration = problem.TransferTime(t, route);
    const Nanoseconds start = FirstStart(route, ready, duration), arrival = start + duration;
    // Of sources that are equally fast: host memory, else the first device.
    if (arrival == best.arrival && best.source != kHost && s < best.source) best.arrival = kNever;
    best.Offer({arrival, start, route, s, 1});
  };
  const bool on_host = problem.tensors[t].in_host_memory();
  if (on_host) consider(kHost, {});
  for (DeviceId s : Holders(t)) consider(s, at_(t, s));
  if (!on_host) return best;
  for (DeviceId s : instance_->sharing) {
    if (s != device && at_(t, s) == kNever) consider(s, {});
  }
  return best;
}

DeviceId PartialSchedule::HomeFor(TensorId tensor, DeviceId device) const {
  if (growth_.home.empty() || !instance_->OnHost(tensor)) return kNone;
  const DeviceId home = growth_.home[tensor];
  if (home == kNone || home == device) return home;
  const std::int32_t on = problem_->RouteFor(tensor, home, device);
  return on != kNone && !instance_->UsesBus(on) ? home : kNone;
}

PartialSchedule::Path PartialSchedule::FindPathFromHolders(TensorId t, DeviceId device,
                                                           bool transits) const {
  const simulate::Problem& problem = *problem_;
  Path best;
  const auto consider = [&](DeviceId s, Nanoseconds ready) {
    const std::int32_t route = problem.RouteFor(t, s, device);
    if (route == kNone || s == device) return;
    const Nanoseconds duration = problem.TransferTime(t, route);
    const Nanoseconds start = FirstStart(route, ready, duration), arrival = start + duration;
    best.Offer({arrival, start, route, s, 1});
  };
  const auto consider_through = [&](DeviceId s) {
    const std::int32_t first = problem.RouteFor(t, kHost, s), on = problem.RouteFor(t, s, device);
    if (at_(t, s) != kNever || first == kNone) return;
    const Nanoseconds loading = problem.TransferTime(t, first);
    const Nanoseconds duration = problem.TransferTime(t, on);
    const Nanoseconds loaded = FirstStart(first, {}, loading) + loading;
    const Nanoseconds start = FirstStart(on, loaded, duration), arrival = start + duration;
    best.Offer({arrival, start, on, s, 2});
  };
  const bool on_host = problem.tensors[t].in_host_memory();
  const DeviceId home = HomeFor(t, device);
  const bool anywhere = home == kNone || home == device;
  if (on_host && anywhere) consider(kHost, {});
  for (DeviceId s : Holders(t)) consider(s, at_(t, s));
  if (!anywhere) consider_through(home);
  if (!on_host || home != kNone) return best;
  for (DeviceId s : instance_->sharing) consider(s, {});
  if (!transits) return best;
  for (DeviceId s : instance_->transits[device]) consider_through(s);
  return best;
}

// ---- extensions: the moves for an operator on a device, tried and undone

void PartialSchedule::Reserve(std::int32_t route, Nanoseconds start, Nanoseconds end) {
  if (growth_.insertion == Growth::Insertion::kAll) {
    Occupy(route, start, end);
    reserved_.emplace_back(route, start, end);
    return;
  }
  for (ChannelId c : problem_->route_channels[route]) {
    const auto found = std::find_if(reserved_until_.begin(), reserved_until_.end(),
                                    [&](const auto& entry) { return entry.first == c; });
    if (found == reserved_until_.end()) {
      reserved_until_.emplace_back(c, end);
    } else {
      found->second = end;
    }
  }
}

void PartialSchedule::EndExtension() {
  reserved_until_.clear();
  for (; !reserved_.empty(); reserved_.pop_back()) {
    const auto& [route, start, end] = reserved_.back();
    for (ChannelId c : problem_->route_channels[route]) channel_[c].Release(start, end);
  }
}

bool PartialSchedule::FastestPath(TensorId tensor, DeviceId device, Sequence* moves) {
  const Path path = FindPath(tensor, device, !growth_.plain);
  moves->clear();
  if (path.hops == 2) moves->push_back(Event::Move(tensor, kHost, path.source));
  if (path.hops > 0) moves->push_back(Event::Move(tensor, path.source, device));
  return path.hops > 0;
}

bool PartialSchedule::TryExtension(const Event& run, bool transits, Extension* extension) {
  const simulate::Problem& problem = *problem_;
  extension->moves.clear();
  extension->copying = {};
  extension->run = run;
  Nanoseconds ready{};
  bool possible = true;
  for (TensorId t : problem.inputs[run.item]) {
    if (!Reads(run, t)) continue;
    if (at_(t, run.device) != kNever) {
      ready = std::max(ready, at_(t, run.device));
      continue;
    }
    const Path path = FindPath(t, run.device, transits);
    if (path.hops == 0) {
      possible = false;
      break;
    }
    if (path.hops == 2) {
      extension->moves.push_back(Event::Move(t, kHost, path.source));
      const std::int32_t first = problem.RouteFor(t, kHost, path.source);
      const Nanoseconds loading = problem.TransferTime(t, first);
      const Nanoseconds start = FirstStart(first, {}, loading);
      Reserve(first, start, start + loading);  // of other channels than the move on from there
    }
    extension->moves.push_back(Event::Move(t, path.source, run.device));
    if (held_[t] > 0) extension->copying.count += path.arrival.count - path.start.count;
    Reserve(path.route, path.start, path.arrival);
    ready = std::max(ready, path.arrival);
  }
  if (possible) {
    const Nanoseconds duration = instance_->Duration(run.item, run.device, run.is_direct());
    extension->end = FirstRun(run, ready, duration) + duration;
  }
  EndExtension();
  return possible;
}

bool PartialSchedule::FindExtension(OperatorId op, DeviceId device, bool direct,
                                    Extension* extension) {
  if (instance_->Duration(op, device, direct) == kNever) return false;
  const Event run = Event::Run(op, device, direct);
  if (!TryExtension(run, !growth_.plain, extension)) return false;
  if (Shortfall(*extension) <= 0) return true;
  if (growth_.plain || instance_->transits[device].empty()) return false;
  return TryExtension(run, false, extension) &&
         Shortfall(*extension) <= 0;  // a neighbour may lack the memory
}

std::int64_t PartialSchedule::Shortfall(const Extension& extension) {
  if (growth_.plain) return -1;
  const simulate::Problem& problem = *problem_;
  brought_.clear();
  const auto bring = [&](DeviceId device, std::int64_t parameters, std::int64_t activations) {
    for (auto& [known, bytes] : brought_) {
      if (known == device) {
        bytes.first += parameters;
        bytes.second += activations;
        return;
      }
    }
    brought_.push_back({device, {parameters, activations}});
  };
  for (const Event& move : extension.moves) {
    const std::int64_t size = problem.tensors[move.item].size.count;
    const bool host = instance_->OnHost(move.item);
    bring(move.device, host ? size : 0, host ? 0 : size);
  }
  for (TensorId t : problem.outputs[extension.run.item]) {
    bring(extension.run.device, 0, problem.tensors[t].size.count);
  }
  std::int64_t most = -1;
  for (const auto& [d, bytes] : brought_) {
    const std::int64_t peak = std::max(peak_[d], live_[d] + bytes.second);
    most = std::max(most, parameters_[d] + bytes.first + peak - memory_[d].count);
  }
  return most;
}

// ---- placing

void PartialSchedule::Place(const Extension& extension) {
  for (const Event& move : extension.moves) Append(move);
  Append(extension.run);
}

Nanoseconds PartialSchedule::Fetch(TensorId tensor, DeviceId device) {
  const Path path = FindPath(tensor, device, !growth_.plain);
  if (path.hops == 0) return kNever;
  if (path.hops == 2) Append(Event::Move(tensor, kHost, path.source));
  return MoveTensor(Event::Move(tensor, path.source, device), path.route, path.start, path.arrival);
}

Nanoseconds PartialSchedule::Place(OperatorId op, DeviceId device) {
  const bool direct = instance_->Duration(op, device, false) == kNever;
  if (instance_->Duration(op, device, direct) == kNever) return kNever;
  const Event run = Event::Run(op, device, direct);
  Nanoseconds ready{};
  for (TensorId t : problem_->inputs[op]) {
    if (Reads(run, t)) ready = std::max(ready, Bring(t, device));
    if (ready == kNever) return kNever;
  }
  return RunOperator(run, ready);
}

Nanoseconds PartialSchedule::PlaceStage(std::span<const OperatorId> ops,
                                        std::span<const std::int32_t> streams, DeviceId device,
                                        std::int32_t stage) {
  const simulate::Problem& problem = *problem_;
  if (ops.size() == 1 || !problem.concurrency.known()) {
    Nanoseconds end{};
    for (std::size_t i = 0; i < ops.size() && end != kNever; ++i) end = Place(ops[i], device);
    return end;
  }
  Nanoseconds start = device_[device].free();
  std::vector<simulate::Member> members;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Nanoseconds time = problem.operator_time(ops[i], device);
    if (time == kNever) return kNever;
    const Event run = Event::Run(ops[i], device, false);
    // What a stage makes and reads itself is there when it is needed; it has no place yet.
    for (TensorId t : problem.inputs[ops[i]]) {
      const OperatorId maker = problem.tensors[t].producer;
      if (maker != kNone && std::ranges::find(ops.first(i), maker) != ops.first(i).end()) continue;
      if (!Reads(run, t)) continue;
      const Nanoseconds there = Bring(t, device);
      if (there == kNever) return kNever;
      start = std::max(start, there);
    }
    members.push_back({ops[i], streams[i], time});
  }
  const Nanoseconds end = start + problem.concurrency.StageTime(device, members);
  device_[device].Occupy(start, end);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Event run = Event::Run(ops[i], device, false);
    RecordRun(run, end);
    in_stage_.push_back({events_.size(), streams[i], stage});
    RecordEvent(run, start, end);
  }
  return end;
}

bool PartialSchedule::Fits() const {
  for (std::size_t d = 0; !growth_.plain && d < memory_.size(); ++d) {
    if (parameters_[d] + peak_[d] > memory_[d].count) return false;
  }
  return true;
}

Sequence PartialSchedule::SortedByStart() const {
  std::vector<std::size_t> order(events_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tuple(starts_[a], ends_[a], a) < std::tuple(starts_[b], ends_[b], b);
  });
  Sequence sorted;
  sorted.reserve(order.size());
  for (std::size_t i : order) sorted.push_back(events_[i]);
  return sorted;
}

simulate::Schedule ScheduleOf(const Sequence& sequence) {
  simulate::Schedule schedule;
  for (const Event& event : sequence) {
    if (event.is_run())
      schedule.placements.push_back({event.item, event.device, event.is_direct()});
    if (event.is_direct()) {
      schedule.transfers.push_back(
          {simulate::TransferKind::kHostRead, event.item, kHost, event.device});
    } else if (!event.is_run()) {
      schedule.transfers.push_back(
          {event.source == kHost ? simulate::TransferKind::kLoad : simulate::TransferKind::kCopy,
           event.item, event.source, event.device});
    }
  }
  return schedule;
}

simulate::Schedule PartialSchedule::Schedule() const {
  simulate::Schedule schedule = ScheduleOf(events_);
  auto staged = in_stage_.begin();
  std::size_t position = 0;
  for (std::size_t i = 0; i < events_.size() && staged != in_stage_.end(); ++i) {
    if (!events_[i].is_run()) continue;
    if (staged->event == i) {
      schedule.placements[position].stream = staged->stream;
      schedule.placements[position].stage = staged->stage;
      ++staged;
    }
    ++position;
  }
  return schedule;
}

simulate::Schedule PartialSchedule::ScheduleByStart() const {
  const simulate::Schedule unsorted = Schedule();
  std::vector<std::pair<Nanoseconds, std::size_t>> runs;
  std::vector<std::tuple<Nanoseconds, Nanoseconds, std::size_t>> transfers;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const Event& event = events_[i];
    if (event.is_run()) runs.emplace_back(starts_[i], runs.size());
    if (event.is_run() && !event.is_direct()) continue;
    const Nanoseconds end = event.is_direct()
                                ? starts_[i] + problem_->host_read_time(event.item, event.device)
                                : ends_[i];
    transfers.emplace_back(starts_[i], end, transfers.size());
  }
  std::ranges::sort(runs);
  std::ranges::sort(transfers);
  simulate::Schedule sorted;
  for (const auto& [start, i] : runs) sorted.placements.push_back(unsorted.placements[i]);
  for (const auto& [start, end, i] : transfers) sorted.transfers.push_back(unsorted.transfers[i]);
  return sorted;
}

}  // namespace tvm_sched::search
