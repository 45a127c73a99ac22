#include "builder.h"

#include <algorithm>

#include "simulate/concurrency.h"

namespace tvm_sched::search {

using simulate::DeviceId;
using simulate::kHost;
using simulate::kNever;
using simulate::kNone;
using simulate::Nanoseconds;
using simulate::OperatorId;
using simulate::TensorId;
using simulate::TransferKind;

Builder::Builder(const simulate::Problem& problem) : problem_(problem) { Clear(); }

void Builder::Clear() {
  schedule_.placements.clear();
  schedule_.transfers.clear();
  starts_.clear();
  ends_.clear();
  device_free_.assign(problem_.devices.size(), {});
  channel_free_.assign(problem_.channels, {});
  at_.columns = problem_.devices.size();
  at_.value.assign(problem_.tensors.size() * at_.columns, kNever);
  latency_ = {};
  for (size_t d = 0; d < problem_.devices.size(); ++d) {
    if (!problem_.devices[d].shares_host_memory) continue;
    for (size_t t = 0; t < problem_.tensors.size(); ++t) {
      if (problem_.tensors[t].in_host_memory()) at_(t, d) = {};
    }
  }
}

Nanoseconds Builder::ChannelsFree(int32_t route) const {
  Nanoseconds free;
  for (simulate::ChannelId c : problem_.route_channels[route])
    free = std::max(free, channel_free_[c]);
  return free;
}

void Builder::Occupy(int32_t route, Nanoseconds until) {
  for (simulate::ChannelId c : problem_.route_channels[route]) channel_free_[c] = until;
}

Nanoseconds Builder::Bring(TensorId tensor, DeviceId device) {
  if (at_(tensor, device) != kNever) return at_(tensor, device);
  Nanoseconds best = kNever;
  DeviceId from = kNone;
  bool load = false;
  auto consider = [&](DeviceId source, Nanoseconds ready) {
    const int32_t route = problem_.RouteOf(source, device);
    if (route == kNone) return;
    const Nanoseconds end =
        std::max(ready, ChannelsFree(route)) + problem_.TransferTime(tensor, route);
    if (end < best) {
      best = end;
      from = source;
      load = source == kHost;
    }
  };
  if (problem_.tensors[tensor].in_host_memory()) consider(kHost, {});
  for (size_t d = 0; d < problem_.devices.size(); ++d) {
    if (at_(tensor, d) != kNever) consider(static_cast<DeviceId>(d), at_(tensor, d));
  }
  if (best == kNever) return kNever;
  Occupy(problem_.RouteOf(from, device), best);
  schedule_.transfers.push_back(
      {load ? TransferKind::kLoad : TransferKind::kCopy, tensor, from, device});
  return at_(tensor, device) = best;
}

Nanoseconds Builder::Gather(OperatorId op, DeviceId device, bool direct) {
  Nanoseconds ready;
  for (TensorId t : problem_.inputs[op]) {
    if (direct && problem_.tensors[t].in_host_memory()) continue;
    const Nanoseconds there = Bring(t, device);
    if (there == kNever) return kNever;
    ready = std::max(ready, there);
  }
  return ready;
}

void Builder::Place(simulate::Placement placement, Nanoseconds start, Nanoseconds end) {
  schedule_.placements.push_back(placement);
  starts_.push_back(start);
  ends_.push_back(end);
  for (TensorId t : problem_.outputs[placement.op]) at_(t, placement.device) = end;
  device_free_[placement.device] = std::max(device_free_[placement.device], end);
  latency_ = std::max(latency_, end);
}

Nanoseconds Builder::Run(OperatorId op, DeviceId device) {
  const bool direct = problem_.operator_time(op, device) == kNever;
  const Nanoseconds time = (direct ? problem_.direct_time : problem_.operator_time)(op, device);
  if (time == kNever) return kNever;
  const Nanoseconds ready = Gather(op, device, direct);
  if (ready == kNever) return kNever;
  Nanoseconds start = std::max(ready, device_free_[device]);
  const int32_t bus = problem_.RouteOf(kHost, device);
  if (direct) {
    start = std::max(start, ChannelsFree(bus));
    Occupy(bus, start + problem_.host_read_time(op, device));
    schedule_.transfers.push_back({TransferKind::kHostRead, op, kHost, device});
  }
  Place({op, device, direct}, start, start + time);
  return start + time;
}

Nanoseconds Builder::RunStage(std::span<const OperatorId> ops, std::span<const int32_t> streams,
                              DeviceId device, int32_t stage) {
  if (ops.size() == 1) return Run(ops[0], device);
  if (!problem_.concurrency.known()) {  // nothing runs together: one after another, as listed
    Nanoseconds end{};
    for (OperatorId op : ops) {
      end = Run(op, device);
      if (end == kNever) return kNever;
    }
    return end;
  }
  Nanoseconds start = device_free_[device];
  std::vector<simulate::Member> members;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Nanoseconds time = problem_.operator_time(ops[i], device);
    if (time == kNever) return kNever;
    // What a stage makes and reads itself is there when it is needed; it has no place yet.
    for (TensorId t : problem_.inputs[ops[i]]) {
      const OperatorId maker = problem_.tensors[t].producer;
      if (maker != kNone && std::ranges::find(ops.first(i), maker) != ops.first(i).end()) continue;
      const Nanoseconds there = Bring(t, device);
      if (there == kNever) return kNever;
      start = std::max(start, there);
    }
    members.push_back({ops[i], streams[i], time});
  }
  const Nanoseconds end = start + problem_.concurrency.StageTime(device, members);
  for (size_t i = 0; i < ops.size(); ++i)
    Place({ops[i], device, false, streams[i], stage}, start, end);
  return end;
}

}  // namespace tvm_sched::search
