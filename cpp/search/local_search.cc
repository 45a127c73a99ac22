#include "search/local_search.h"

#include <algorithm>
#include <array>

#include "search/choose_move.h"
#include "search/list_schedule.h"

namespace tvm_sched::search {
namespace {

/// A change is taken when it is no worse than what held this many tries ago.
constexpr std::size_t kHistory = 100;
/// Tries for each event without a better schedule, after which the search goes back to the
/// best one and is less choosy.
constexpr std::int64_t kPatience = 15;
/// How often it goes back without having found a better one before it stops.
constexpr int kGiveUp = 5;
/// How much worse schedules may be then, as a share of the best latency.
constexpr double kHeat = 0.02;
/// Tries after which the critical events of the present schedule are looked up again.
constexpr std::int64_t kRefreshSearch = 20;
/// Share of tries that change something that the latency waits for.
constexpr double kCriticalMove = 0.8;

/// What a try changes.
enum class EventMove { kPlaceElsewhere, kPlaceTogether, kPlaceBlock, kShift, kChangePath };

/// How often a move is tried, beside the others.
struct MoveWeight {
  EventMove move;
  int weight;
};

constexpr std::array<MoveWeight, 5> kEventMoves = {{
    {EventMove::kPlaceElsewhere, 2},
    {EventMove::kPlaceTogether, 1},
    {EventMove::kPlaceBlock, 1},
    {EventMove::kShift, 3},
    {EventMove::kChangePath, 3},
}};

}  // namespace

LocalSearch::LocalSearch(const std::vector<WeightedRun>& runs, double memory_scale,
                         const Sequence& start, std::uint64_t seed, Nanoseconds goal)
    : instance_(*runs.front().instance),
      random_(seed),
      goal_(goal),
      replay_(instance_),
      share_(runs.front().share),
      now_(instance_, {memory_scale}),
      next_(instance_, {memory_scale}),
      best_(instance_, {memory_scale}) {
  for (const WeightedRun& run : std::span(runs).subspan(1)) {
    others_.push_back(
        {run.share, Replay(*run.instance), PartialSchedule(*run.instance, {memory_scale})});
  }
  if (!Play(start, kNever)) {
    vain_ = kGiveUp;
    return;
  }
  best_ = now_ = next_;
  best_latency_ = now_latency_ = next_latency_;
  history_.assign(kHistory, now_latency_);
  lowest_ = now_latency_;
  patience_ = all_patience_ =
      kPatience * static_cast<std::int64_t>(std::max<std::size_t>(1, start.size()));
}

bool LocalSearch::Step(std::int64_t events) {
  for (played_ -= events; played_ < 0; ++tries_) {
    if (now_.events().empty() || best_latency_ <= goal_ || vain_ >= kGiveUp) return false;
    Try();
  }
  return true;
}

/// Fills `next_` with the schedule of a sequence; false where it cannot be played in all
/// runs or the latency is above `limit`.
bool LocalSearch::Play(const Sequence& sequence, Nanoseconds limit) {
  if (!replay_.Play(sequence, others_.empty() ? limit : kNever, &next_)) return false;
  next_latency_ = next_.latency();
  if (others_.empty()) return true;
  double mean = share_ * static_cast<double>(next_latency_.count);
  for (OtherRun& other : others_) {
    if (!other.replay.Play(next_.events(), kNever, &other.state)) return false;
    mean += other.share * static_cast<double>(other.state.latency().count);
    played_ += static_cast<std::int64_t>(next_.events().size());
  }
  next_latency_.count = static_cast<std::int64_t>(mean);
  return next_latency_ <= limit;
}

void LocalSearch::Try() {
  if (tries_ % kRefreshSearch == 0) critical_ = CriticalEvents(now_);
  Nanoseconds& late = history_[tries_ % kHistory];
  sequence_ = now_.events();
  dispatch_ = false;
  if (Change(&sequence_)) {
    const Nanoseconds limit = std::max(now_latency_, late);
    bool better = Play(sequence_, dispatch_ ? kNever : limit);
    played_ += static_cast<std::int64_t>(next_.events().size());
    if (better && dispatch_) {
      sequence_ = Dispatch(next_);
      better = Play(sequence_, limit);
      played_ += 4 * static_cast<std::int64_t>(next_.events().size());
    }
    if (better) Accept();
  } else {
    ++played_;
  }
  late = std::min(late, now_latency_);
  Reheat();
}

void LocalSearch::Accept() {
  std::swap(now_, next_);
  std::swap(now_latency_, next_latency_);
  if (now_latency_ < best_latency_) {
    best_ = now_;
    best_latency_ = now_latency_;
    vain_ = 0;
  }
}

void LocalSearch::Reheat() {
  --patience_;
  if (now_latency_ < lowest_) {
    lowest_ = now_latency_;
    patience_ = all_patience_;
  }
  if (patience_ > 0) return;
  now_ = best_;
  now_latency_ = best_latency_;
  critical_ = CriticalEvents(now_);
  lowest_.count = static_cast<std::int64_t>(static_cast<double>(best_latency_.count) * (1 + kHeat));
  history_.assign(kHistory, lowest_);
  patience_ = all_patience_;
  ++vain_;
}

std::size_t LocalSearch::Position() {
  const std::size_t events = now_.events().size();
  if (!critical_.empty() && random_.Chance(kCriticalMove)) {
    const std::size_t position = critical_[random_.Below(critical_.size())];
    if (position < events) return position;
  }
  return random_.Below(events);
}

bool LocalSearch::Change(Sequence* sequence) {
  const std::size_t position = Position();
  const auto below = [&](std::size_t limit) { return random_.Below(limit); };
  switch (ChooseMove(kEventMoves, &MoveWeight::weight, below)) {
    case EventMove::kPlaceElsewhere:
      return PlaceElsewhere(position, sequence);
    case EventMove::kPlaceTogether:
      return PlaceTogether(position, sequence);
    case EventMove::kPlaceBlock:
      return PlaceBlock(position, sequence);
    case EventMove::kShift:
      return Shift(position, sequence);
    case EventMove::kChangePath:
      return ChangePath(position, sequence);
  }
  return false;
}

/// The event itself where it is a run, else the first run after it that reads its tensor.
bool LocalSearch::RunNear(std::size_t position, std::size_t* run) const {
  const Sequence& events = now_.events();
  if (events[position].is_run()) {
    *run = position;
    return true;
  }
  for (std::size_t i = position + 1; i < events.size(); ++i) {
    if (!events[i].is_run()) continue;
    const auto read = instance_.problem.inputs[events[i].item];
    if (std::find(read.begin(), read.end(), events[position].item) != read.end()) {
      *run = i;
      return true;
    }
  }
  return false;
}

/// Moves a run to a device in the mode that it has, or in the other one where it must.
bool LocalSearch::SetPlace(Event* run, DeviceId device) {
  for (bool direct : {run->is_direct(), !run->is_direct()}) {
    if (instance_.Duration(run->item, device, direct) == kNever) continue;
    *run = Event::Run(run->item, device, direct);
    return true;
  }
  return false;
}

/// One operator on another device or in another mode.
bool LocalSearch::PlaceElsewhere(std::size_t position, Sequence* sequence) {
  std::size_t i;
  if (!RunNear(position, &i)) return false;
  Event& run = (*sequence)[i];
  const auto device = static_cast<DeviceId>(random_.Below(instance_.devices()));
  const bool direct = random_.Chance(0.25);
  const Event other = Event::Run(run.item, device, direct);
  if (other == run || instance_.Duration(run.item, device, direct) == kNever) return false;
  run = other;
  return true;
}

/// An operator and some that follow it, as far as they run on the same device, go to another
/// one.
bool LocalSearch::PlaceTogether(std::size_t position, Sequence* sequence) {
  std::size_t i;
  if (!RunNear(position, &i)) return false;
  const DeviceId from = (*sequence)[i].device;
  std::vector<OperatorId> group = {(*sequence)[i].item}, ahead;
  for (std::size_t steps = 1 + random_.Below(5); steps > 0; --steps) {
    ahead.clear();
    for (OperatorId s : instance_.successors[group.back()]) {
      if (now_.placed(s) == from) ahead.push_back(s);
    }
    if (ahead.empty()) break;
    group.push_back(ahead[random_.Below(ahead.size())]);
  }
  const auto device = static_cast<DeviceId>(random_.Below(instance_.devices()));
  if (device == from) return false;
  for (std::size_t k = i; k < sequence->size() && !group.empty(); ++k) {
    Event& event = (*sequence)[k];
    const auto found =
        event.is_run() ? std::find(group.begin(), group.end(), event.item) : group.end();
    if (found == group.end()) continue;
    group.erase(found);
    if (!SetPlace(&event, device)) return false;
  }
  return true;
}

/// Operators that follow each other in the sequence, all or those of one device, go to
/// another device: boundaries between parts of the model move.
bool LocalSearch::PlaceBlock(std::size_t position, Sequence* sequence) {
  std::size_t i;
  if (!RunNear(position, &i)) return false;
  const DeviceId from = (*sequence)[i].device;
  const auto device = static_cast<DeviceId>(random_.Below(instance_.devices()));
  const bool all = random_.Chance(0.3);
  // Short blocks more often than long ones.
  const std::size_t most = std::size_t{4} << random_.Below(7);
  std::size_t left = 2 + random_.Below(most);
  const bool backwards = random_.Chance(0.5);
  bool changed = false;
  for (std::size_t k = i; left > 0; backwards ? --k : ++k) {
    Event& event = (*sequence)[k];
    if (event.is_run()) {
      --left;
      if ((all || event.device == from) && event.device != device) {
        if (!SetPlace(&event, device)) return false;
        changed = true;
      }
    }
    if (backwards ? k == 0 : k + 1 == sequence->size()) break;
  }
  dispatch_ = changed;
  return changed;
}

/// An event goes to another place in the sequence; a run stays between its predecessors and
/// successors.
bool LocalSearch::Shift(std::size_t position, Sequence* sequence) {
  const Event event = (*sequence)[position];
  const std::size_t reaches[] = {3, 10, 60, sequence->size()};
  const std::size_t reach = reaches[random_.Below(4)];
  std::size_t low = position > reach ? position - reach : 0;
  std::size_t high = std::min(sequence->size() - 1, position + reach);
  if (event.is_run()) {
    const auto next_to = [&](std::size_t i, std::span<const OperatorId> row) {
      const Event& other = (*sequence)[i];
      return other.is_run() && std::binary_search(row.begin(), row.end(), other.item);
    };
    for (std::size_t i = position; i-- > low;) {
      if (next_to(i, instance_.predecessors[event.item])) low = i + 1;
    }
    for (std::size_t i = position + 1; i <= high; ++i) {
      if (next_to(i, instance_.successors[event.item])) high = i - 1;
    }
  }
  const std::size_t target = low + random_.Below(high - low + 1);
  if (target == position) return false;
  const auto at = sequence->begin();
  if (target < position) {
    std::rotate(at + target, at + position, at + position + 1);
  } else {
    std::rotate(at + position, at + position + 1, at + target + 1);
  }
  return true;
}

/// A tensor comes to a device from elsewhere: another holder, host memory, a neighbour.
bool LocalSearch::ChangePath(std::size_t position, Sequence* sequence) {
  const Event move = (*sequence)[position];
  if (move.is_run()) return false;
  const TensorId t = move.item;
  const DeviceId d = move.device;
  const simulate::Problem& problem = instance_.problem;
  std::vector<Sequence> paths = {{}};
  if (instance_.OnHost(t) && problem.RouteOf(kHost, d) != kNone) {
    paths.push_back({Event::Move(t, kHost, d)});
  }
  for (std::size_t s = 0; s < instance_.devices(); ++s) {
    const auto source = static_cast<DeviceId>(s);
    if (source != d && now_.IsSource(t, source) && problem.RouteOf(source, d) != kNone) {
      paths.push_back({Event::Move(t, source, d)});
    }
  }
  if (instance_.OnHost(t)) {
    for (DeviceId s : instance_.transits[d]) {
      paths.push_back({Event::Move(t, kHost, s), Event::Move(t, s, d)});
    }
  }
  const Sequence& path = paths[random_.Below(paths.size())];
  if (path == Sequence{move}) return false;
  const auto at = sequence->erase(sequence->begin() + static_cast<std::ptrdiff_t>(position));
  sequence->insert(at, path.begin(), path.end());
  return true;
}

}  // namespace tvm_sched::search
