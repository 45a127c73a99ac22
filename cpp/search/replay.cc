#include "search/replay.h"

#include <algorithm>

namespace tvm_sched::search {

Replay::Replay(const Instance& instance)
    : instance_(instance),
      needed_(instance.tensors(), instance.devices(), 0),
      moved_(instance.tensors(), instance.devices(), 0),
      needing_(instance.tensors()) {}

void Replay::FindNeeds(const Sequence& sequence, const PartialSchedule& state) {
  ++round_;
  for (TensorId t : filled_) needing_[t].clear();
  filled_.clear();
  const auto need = [&](TensorId t, DeviceId d) {
    // A device that shares host memory reads host tensors in place and can send them on from there.
    if (instance_.OnHost(t) && instance_.problem.devices[d].shares_host_memory) return;
    if (needed_(t, d) == round_) return;
    needed_(t, d) = round_;
    if (!instance_.OnHost(t)) return;
    needing_[t].push_back(d);
    filled_.push_back(t);
  };
  for (auto event = sequence.rbegin(); event != sequence.rend(); ++event) {
    if (event->is_run()) {
      for (TensorId t : instance_.problem.inputs[event->item]) {
        if (state.Reads(*event, t)) need(t, event->device);
      }
    } else if (needed_(event->item, event->device) == round_) {
      moved_(event->item, event->device) = round_;
      if (event->source != kHost) need(event->item, event->source);
    }
  }
}

bool Replay::PlayMove(const Event& move, PartialSchedule* state) {
  if (needed_(move.item, move.device) == round_) {
    if (state->CanMove(move)) state->Append(move);
    return true;
  }
  if (!instance_.OnHost(move.item)) return true;
  for (DeviceId d : needing_[move.item]) {
    if (moved_(move.item, d) == round_ || state->At(move.item, d) != kNever) continue;
    if (!state->FastestPath(move.item, d, &path_)) return false;
    for (const Event& step : path_) state->Append(step);
  }
  return true;
}

bool Replay::Play(const Sequence& sequence, Nanoseconds limit, PartialSchedule* state) {
  state->Clear();
  FindNeeds(sequence, *state);
  Extension extension;
  for (const Event& event : sequence) {
    if (!event.is_run()) {
      if (!PlayMove(event, state)) return false;
      continue;
    }
    bool complete = true;
    for (TensorId t : instance_.problem.inputs[event.item]) {
      complete = complete && (!state->Reads(event, t) || state->At(t, event.device) != kNever);
    }
    if (complete) {
      state->Append(event);
    } else {
      if (!state->FindExtension(event.item, event.device, event.is_direct(), &extension))
        return false;
      state->Place(extension);
    }
    if (state->ends().back() + instance_.tail[event.item] > limit) return false;
  }
  return state->Fits();
}

std::vector<std::size_t> CriticalEvents(const PartialSchedule& state) {
  const Sequence& events = state.events();
  const simulate::Problem& problem = state.instance().problem;
  std::vector<std::pair<Nanoseconds, std::size_t>> ending;
  ending.reserve(events.size());
  std::size_t at = events.size();
  const auto counts = [&](std::size_t i) { return state.ends()[i] + problem.Lag(events[i].item); };
  for (std::size_t i = 0; i < events.size(); ++i) {
    ending.emplace_back(state.ends()[i], i);
    if (events[i].is_direct()) {
      ending.emplace_back(
          state.starts()[i] + problem.host_read_time(events[i].item, events[i].device), i);
    }
    if (events[i].is_run() && (at == events.size() || counts(i) > counts(at))) at = i;
  }
  std::sort(ending.begin(), ending.end());
  std::vector<std::size_t> found;
  while (at < events.size()) {
    found.push_back(at);
    // The last event before this one in the sequence that ends when it begins.
    auto after = std::lower_bound(ending.begin(), ending.end(), std::pair(state.starts()[at], at));
    if (after == ending.begin()) break;
    --after;
    if (after->first != state.starts()[at]) break;
    at = after->second;
  }
  return found;
}

}  // namespace tvm_sched::search
