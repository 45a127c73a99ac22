#include "search/list_schedule.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "search/replay.h"

namespace tvm_sched::search {
namespace {

/// The extension that ends first, its copies weighed, with the fewest moves among those;
/// false where there is none.
bool BestExtension(PartialSchedule* state, OperatorId op, const Choice& choice, Extension* best) {
  Extension extension;
  bool found = false;
  const auto price = [&](const Extension& e) {
    const double copying = choice.copy_weight * static_cast<double>(e.copying.count);
    return std::tuple(e.end.count + static_cast<std::int64_t>(copying), e.moves.size());
  };
  for (std::size_t d = 0; d < state->instance().devices(); ++d) {
    if (!choice.device[d]) continue;
    for (bool direct : {false, true}) {
      if (direct && !choice.direct) continue;
      if (!state->FindExtension(op, static_cast<DeviceId>(d), direct, &extension)) continue;
      if (!found || price(extension) < price(*best)) {
        std::swap(*best, extension);
        found = true;
      }
    }
  }
  return found;
}

/// Events as nodes of a graph, ordered by the earliest time at which each can start.
class Dispatcher {
 public:
  Dispatcher(const PartialSchedule& given, const std::vector<std::int64_t>& turn)
      : given_(given), instance_(given.instance()), turn_(turn), events_(given.events()) {
    Prioritise();
    Connect();
  }

  Sequence Run() {
    device_free_.assign(instance_.devices(), {});
    channel_free_.assign(instance_.problem.channels, {});
    for (std::size_t e = 0; e < events_.size(); ++e) {
      if (waiting_[e] == 0) Offer(e);
    }
    Sequence order;
    order.reserve(events_.size());
    for (Group* group = First(); group != nullptr; group = First()) {
      const Entry next = group->top();
      const std::size_t event = std::get<3>(next);
      group->pop();
      order.push_back(events_[event]);
      Take(event, std::get<0>(next));
      if (is_load(event)) OfferNextLoad(event);
    }
    return order;
  }

 private:
  /// Start, urgency (runs and copies before loads), position, event.
  using Entry = std::tuple<Nanoseconds, int, Nanoseconds, std::size_t>;
  using Queue = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;

  /// Ready events that need the same device and channels, so that all of them start when these are
  /// free. In one queue of all events, each event that takes a device would move all others of it.
  class Group {
   public:
    bool empty() const { return free_.empty() && later_.empty(); }
    void Add(const Entry& entry) { later_.push(entry); }

    /// The device and the channels are taken until `time`, which never falls.
    void Wait(Nanoseconds time) {
      until_ = time;
      while (!later_.empty() && std::get<0>(later_.top()) <= time) {
        Entry entry = later_.top();
        later_.pop();
        std::get<0>(entry) = {};
        free_.push(entry);
      }
    }

    /// The event that starts first, after `Wait`.
    Entry top() const {
      Entry entry = free_.empty() ? later_.top() : free_.top();
      std::get<0>(entry) = std::max(std::get<0>(entry), until_);
      return entry;
    }

    void pop() { (free_.empty() ? later_ : free_).pop(); }

   private:
    Nanoseconds until_{};
    Queue later_, free_;  // by their own times; ready at `until_`
  };

  /// The group of the event that starts first; null where none is ready.
  Group* First() {
    Group* first = nullptr;
    Entry best;
    for (auto& [needs, group] : groups_) {
      if (group.empty()) continue;
      group.Wait(FreeAt(needs.first, needs.second));
      if (const Entry entry = group.top(); first == nullptr || entry < best) {
        first = &group;
        best = entry;
      }
    }
    return first;
  }

  bool is_load(std::size_t event) const {
    return !events_[event].is_run() && events_[event].source == kHost;
  }

  Nanoseconds TurnOf(OperatorId op) const { return Nanoseconds{turn_[op]}; }

  std::int32_t RouteOf(std::size_t event) const {
    const Event& e = events_[event];
    if (!e.is_run()) return instance_.problem.RouteFor(e.item, e.source, e.device);
    return e.is_direct() ? instance_.problem.RouteOf(kHost, e.device) : kNone;
  }

  /// `position`: for a move the start or turn of the first run that needs it, for a run its
  /// turn or the negative of its rank.
  void Prioritise() {
    position_.assign(events_.size(), kNever);
    maker_ = {instance_.tensors(), instance_.devices(), kNone};
    for (std::size_t e = 0; e < events_.size(); ++e) {
      const Event& event = events_[e];
      if (!event.is_run()) {
        maker_(event.item, event.device) = static_cast<std::int32_t>(e);
        continue;
      }
      position_[e] = turn_.empty() ? -instance_.rank[event.item] : TurnOf(event.item);
      for (TensorId t : instance_.problem.outputs[event.item]) {
        maker_(t, event.device) = static_cast<std::int32_t>(e);
      }
    }
    for (std::size_t e = events_.size(); e-- > 0;) {
      const Event& event = events_[e];
      if (event.is_run()) {
        const Nanoseconds when = turn_.empty() ? given_.starts()[e] : TurnOf(event.item);
        for (TensorId t : instance_.problem.inputs[event.item]) {
          if (given_.Reads(event, t)) Urge(maker_(t, event.device), when);
        }
      } else if (event.source != kHost) {
        Urge(maker_(event.item, event.source), position_[e]);
      }
    }
  }

  void Urge(std::int32_t maker, Nanoseconds when) {
    if (maker != kNone && !events_[maker].is_run())
      position_[maker] = std::min(position_[maker], when);
  }

  void Connect() {
    waiting_.assign(events_.size(), 0);
    after_.resize(events_.size());
    ready_at_.assign(events_.size(), {});
    std::map<std::int32_t, std::vector<std::size_t>> loads;
    for (std::size_t e = 0; e < events_.size(); ++e) {
      const Event& event = events_[e];
      if (event.is_run()) {
        for (TensorId t : instance_.problem.inputs[event.item]) {
          if (given_.Reads(event, t)) Wait(e, maker_(t, event.device));
          // A copy may stand before an operator that needs it elsewhere, not before its maker.
        }
      } else if (event.source != kHost) {
        Wait(e, maker_(event.item, event.source));
      } else {
        loads[RouteOf(e)].push_back(e);
      }
    }
    // Of the loads of a bus only the next one is offered: all of them could start when it is free.
    next_load_.assign(events_.size(), events_.size());
    for (auto& [route, queue] : loads) {
      std::stable_sort(queue.begin(), queue.end(),
                       [&](std::size_t a, std::size_t b) { return position_[a] < position_[b]; });
      for (std::size_t i = 1; i < queue.size(); ++i) {
        next_load_[queue[i - 1]] = queue[i];
        waiting_[queue[i]] = 1;
      }
    }
  }

  void Wait(std::size_t event, std::int32_t maker) {
    if (maker == kNone) return;
    after_[maker].push_back(event);
    ++waiting_[event];
  }

  void Offer(std::size_t event) {
    const Event& e = events_[event];
    groups_[{e.is_run() ? e.device : kNone, RouteOf(event)}].Add(
        {ready_at_[event], is_load(event) ? 1 : 0, position_[event], event});
  }

  void OfferNextLoad(std::size_t event) {
    if (next_load_[event] < events_.size()) Offer(next_load_[event]);
  }

  /// When a device (or none) and the channels of a route (or none) are free.
  Nanoseconds FreeAt(DeviceId device, std::int32_t route) const {
    Nanoseconds start = device == kNone ? Nanoseconds{} : device_free_[device];
    if (route == kNone) return start;
    for (ChannelId c : instance_.problem.route_channels[route]) {
      start = std::max(start, channel_free_[c]);
    }
    return start;
  }

  void Take(std::size_t event, Nanoseconds start) {
    const Event& e = events_[event];
    const simulate::Problem& problem = instance_.problem;
    const std::int32_t route = RouteOf(event);
    Nanoseconds end = start, released = start;
    if (e.is_run()) {
      end = start + instance_.Duration(e.item, e.device, e.is_direct());
      device_free_[e.device] = end;
      released = start + problem.host_read_time(e.item, e.device);
    } else {
      end = released = start + problem.TransferTime(e.item, route);
    }
    if (route != kNone) {
      for (ChannelId c : problem.route_channels[route]) channel_free_[c] = released;
    }
    for (std::size_t next : after_[event]) {
      ready_at_[next] = std::max(ready_at_[next], end);
      if (--waiting_[next] == 0) Offer(next);
    }
  }

  const PartialSchedule& given_;
  const Instance& instance_;
  const std::vector<std::int64_t>& turn_;
  const Sequence& events_;
  simulate::Matrix<std::int32_t> maker_;
  std::vector<Nanoseconds> position_, ready_at_, device_free_, channel_free_;
  std::vector<std::int32_t> waiting_;
  std::vector<std::vector<std::size_t>> after_;
  std::vector<std::size_t> next_load_;
  std::map<std::pair<DeviceId, std::int32_t>, Group> groups_;
};

}  // namespace

bool ListSchedule(PartialSchedule* state, const std::vector<Choice>& choices,
                  const std::vector<std::int32_t>& choice, const std::vector<std::int64_t>& turn) {
  const Instance& instance = state->instance();
  const Choice anywhere{std::vector<bool>(instance.devices(), true)};
  std::vector<std::size_t> waiting(instance.operators());
  const auto urgency = [&](OperatorId o) {
    return turn.empty() ? instance.rank[o] : Nanoseconds{-turn[o]};
  };
  std::priority_queue<std::pair<Nanoseconds, OperatorId>> free;  // of equals the first operator
  for (std::size_t o = 0; o < waiting.size(); ++o) {
    waiting[o] = instance.predecessors[o].size();
    const auto op = static_cast<OperatorId>(o);
    if (waiting[o] == 0) free.emplace(urgency(op), -op);
  }
  Extension extension;
  while (!free.empty()) {
    const OperatorId op = -free.top().second;
    free.pop();
    if (!BestExtension(state, op, choices[choice[op]], &extension) &&
        !BestExtension(state, op, anywhere, &extension)) {
      return false;
    }
    state->Place(extension);
    for (OperatorId s : instance.successors[op]) {
      if (--waiting[s] == 0) free.emplace(urgency(s), -s);
    }
  }
  return true;
}

Sequence Dispatch(const PartialSchedule& given, const std::vector<std::int64_t>& turn) {
  return Dispatcher(given, turn).Run();
}

Constructed Construct(const Instance& instance, const std::vector<Choice>& choices,
                      const std::vector<std::int32_t>& choice, double memory_scale,
                      std::vector<DeviceId> home, const std::vector<std::int64_t>& turn) {
  PartialSchedule listed(instance,
                         {memory_scale, Growth::Insertion::kLoads, false, std::move(home)});
  if (!ListSchedule(&listed, choices, choice, turn)) return {};
  Replay replay(instance);
  PartialSchedule sorted(instance, {memory_scale}), dispatched(instance, {memory_scale});
  const bool first = replay.Play(listed.SortedByStart(), kNever, &sorted);
  const bool second = replay.Play(Dispatch(listed, turn), kNever, &dispatched);
  if (second && (!first || dispatched.latency() < sorted.latency()))
    return {dispatched.events(), dispatched.latency()};
  if (!first) return {};
  return {sorted.events(), sorted.latency()};
}

}  // namespace tvm_sched::search
