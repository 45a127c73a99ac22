// Extensions of a partial schedule: the moves for an operator on a device, tried and undone.
#include <algorithm>

#include "partial_schedule.h"

namespace tvm_sched::search {

void PartialSchedule::Reserve(int32_t route, Nanoseconds start, Nanoseconds end) {
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

bool PartialSchedule::FastestWay(TensorId tensor, DeviceId device, Sequence* moves) {
  const Way way = FindWay(tensor, device, !growth_.plain);
  moves->clear();
  if (way.hops == 2) moves->push_back(Event::Move(tensor, kHost, way.source));
  if (way.hops > 0) moves->push_back(Event::Move(tensor, way.source, device));
  return way.hops > 0;
}

bool PartialSchedule::TryExtension(const Event& run, bool transits, Extension* extension) {
  const simulate::Problem& problem = *problem_;
  extension->moves.clear();
  extension->run = run;
  Nanoseconds ready{};
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
    if (way.hops == 2) {
      extension->moves.push_back(Event::Move(t, kHost, way.source));
      const int32_t first = problem.RouteFor(t, kHost, way.source);
      const Nanoseconds loading = problem.TransferTime(t, first);
      const Nanoseconds start = FirstStart(first, {}, loading);
      Reserve(first, start, start + loading);  // of other channels than the move on from there
    }
    extension->moves.push_back(Event::Move(t, way.source, run.device));
    Reserve(way.route, way.start, way.arrival);
    ready = std::max(ready, way.arrival);
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

int64_t PartialSchedule::Shortfall(const Extension& extension) {
  if (growth_.plain) return -1;
  const simulate::Problem& problem = *problem_;
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
  for (const Event& move : extension.moves) {
    const int64_t size = problem.tensors[move.item].size.count;
    const bool host = instance_->OnHost(move.item);
    bring(move.device, host ? size : 0, host ? 0 : size);
  }
  for (TensorId t : problem.outputs[extension.run.item]) {
    bring(extension.run.device, 0, problem.tensors[t].size.count);
  }
  int64_t most = -1;
  for (const auto& [d, bytes] : brought_) {
    const int64_t peak = std::max(peak_[d], live_[d] + bytes.second);
    most = std::max(most, parameters_[d] + bytes.first + peak - memory_[d].count);
  }
  return most;
}

}  // namespace tvm_sched::search
