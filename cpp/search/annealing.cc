#include "search/annealing.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numeric>

#include "search/choose_move.h"
#include "search/random.h"
#include "search/sequence_timer.h"

namespace tvm_sched::search {
namespace {

/// Temperature at the start and at the end of a round, as parts of the best latency.
constexpr double kHot = 0.002, kCold = 0.0001;
/// Weight of the time of all copies beside the latency where parameters are loaded: a bus
/// that has less to carry has room for loads, which the latency alone shows late.
constexpr double kCopyWeight = 0.2;
/// Weight of the mean time for which stages occupy a device beside the latency where nothing
/// is loaded: a stage that saves time leaves room, which the latency alone shows late.
constexpr double kOccupancyWeight = 4;
/// Rounds from hot to cold, each from the best sequence.
constexpr int kRounds = 2;
/// Moves after which the operators that the latency waits for are looked up again.
constexpr int kRefresh = 100;
/// Part of the moves that such operators make.
constexpr double kCritical = 0.5;
/// Part of the moves of several operators where parameters are loaded.
constexpr double kGroup = 0.2;
/// How far an operator goes in the order, or looks for a partner.
constexpr std::size_t kNear = 48;

/// What a move changes.
enum class OperatorMove {
  kSetDevice,
  kShift,
  kShiftAndSetDevice,
  kFollowNeighbour,
  kExchange,
  kToggle,
  kPair,
  kMoveStage,
  kShiftStage,
  kSwap,
};

/// How often a move is tried, beside the others of its column.
struct MoveWeights {
  OperatorMove move;
  int alone;    ///< Each operator is a stage of its own.
  int loading;  ///< Stages of several operators, where parameters are loaded.
  int staged;   ///< Stages of several operators, where nothing is loaded.
};

constexpr std::array<MoveWeights, 10> kMoves = {{
    {OperatorMove::kSetDevice, 1, 1, 1},
    {OperatorMove::kShift, 1, 1, 1},
    {OperatorMove::kShiftAndSetDevice, 1, 1, 1},
    {OperatorMove::kFollowNeighbour, 1, 1, 1},
    {OperatorMove::kExchange, 1, 1, 1},
    {OperatorMove::kToggle, 0, 1, 1},
    {OperatorMove::kPair, 0, 1, 1},
    {OperatorMove::kMoveStage, 0, 0, 1},
    {OperatorMove::kShiftStage, 0, 0, 1},
    {OperatorMove::kSwap, 0, 0, 1},
}};

/// Whether anything is loaded into a device's memory.
bool Loads(const simulate::Problem& problem) {
  return std::ranges::any_of(problem.tensors,
                             [](const simulate::Tensor& tensor) {
                               return tensor.in_host_memory() && !tensor.resident;
                             }) &&
         !std::ranges::all_of(problem.devices, &simulate::Device::shares_host_memory);
}

/// A sequence that moves change and that can be put back.
class Movable {
 public:
  Movable(const simulate::Problem& problem, const TaskGraph& graph, const StageSequence& start,
          int stage)
      : problem_(problem),
        graph_(graph),
        stage_(stage),
        loads_(Loads(problem)),
        now_(start),
        place_(graph.size()) {
    for (std::size_t i = 0; i < now_.order.size(); ++i) place_[now_.order[i]] = i;
  }

  const StageSequence& sequence() const { return now_; }
  std::size_t place(OperatorId op) const { return place_[op]; }

  bool loads() const { return loads_; }

  /// Positions between which the last move changed something, to the end of a stage.
  std::size_t first() const { return first_; }
  std::size_t last() const {
    std::size_t last = begin_ + old_order_.size() - 1;
    while (last + 1 < now_.order.size() && now_.SameStage(last + 1)) ++last;
    return last;
  }

  /// Tries one change; false where it is none.
  bool Move(OperatorId op, MersenneTwister* random) {
    if (loads_ && random->Unit() < kGroup) return MoveGroup(op, random);
    const auto weights = stage_ == 1 ? &MoveWeights::alone
                         : loads_    ? &MoveWeights::loading
                                     : &MoveWeights::staged;
    switch (
        ChooseMove(kMoves, weights, [&](std::size_t limit) { return random->ShareOf(limit); })) {
      case OperatorMove::kSetDevice:
        return SetDevice(op, random);
      case OperatorMove::kShift:
        return Shift(op, random);
      case OperatorMove::kShiftAndSetDevice: {
        const bool shifted = Shift(op, random);
        return SetDevice(op, random) || shifted;
      }
      case OperatorMove::kFollowNeighbour:
        return FollowNeighbour(op, random);
      case OperatorMove::kExchange:
        return Exchange(op, random);
      case OperatorMove::kToggle:
        return Toggle(op);
      case OperatorMove::kPair:
        return Pair(op, random);
      case OperatorMove::kMoveStage:
        return MoveStage(op, random);
      case OperatorMove::kShiftStage:
        return ShiftStage(op, random);
      case OperatorMove::kSwap:
        return Swap(op, random);
    }
    return false;
  }

  void Undo() {
    for (const auto& [op, device] : old_devices_) now_.device[op] = device;
    std::copy(old_order_.begin(), old_order_.end(), now_.order.begin() + begin_);
    for (std::size_t i = 0; i < old_joins_.size(); ++i) now_.joins[begin_ + i] = old_joins_[i];
    for (std::size_t i = begin_; i < begin_ + old_order_.size(); ++i) place_[now_.order[i]] = i;
    Keep();
  }

  void Keep() {
    old_order_.clear();
    old_joins_.clear();
    old_devices_.clear();
  }

  /// Puts operators in the order of their starts, so that what is near in the sequence is
  /// near in time. On each device the order stays.
  void SortByStart(const SequenceTimer& timer) {
    std::vector<std::size_t> stages;  // first position of each
    for (std::size_t i = 0; i < now_.order.size(); ++i) {
      if (!now_.SameStage(i)) stages.push_back(i);
    }
    std::stable_sort(stages.begin(), stages.end(), [&](std::size_t a, std::size_t b) {
      return timer.Start(now_.order[a]) < timer.Start(now_.order[b]);
    });
    const StageSequence old = now_;
    std::size_t at = 0;
    for (std::size_t i : stages) {
      do {
        now_.order[at] = old.order[i];
        now_.joins[at] = old.SameStage(i);
        ++at, ++i;
      } while (i < old.order.size() && old.SameStage(i));
    }
    for (std::size_t i = 0; i < now_.order.size(); ++i) place_[now_.order[i]] = i;
  }

 private:
  /// Remembers positions `begin` to `end`, and one more whose join may have to go.
  void Remember(std::size_t begin, std::size_t end) {
    begin_ = first_ = begin;
    while (now_.SameStage(first_)) --first_;
    end = std::min(end + 2, now_.order.size());
    old_order_.assign(now_.order.begin() + begin, now_.order.begin() + end);
    old_joins_.assign(now_.joins.begin() + begin, now_.joins.begin() + end);
  }

  /// An operator and some that are joined to it on its device go to another device.
  bool MoveGroup(OperatorId op, MersenneTwister* random) {
    const auto device = static_cast<DeviceId>(random->ShareOf(graph_.devices()));
    const DeviceId from = now_.device[op];
    if (device == from) return false;
    group_.assign(1, op);
    const std::size_t most = 1 + random->ShareOf(std::size_t{2} << random->ShareOf(4));
    for (std::size_t tries = 2 * most; group_.size() < most && tries > 0; --tries) {
      const OperatorId member = group_[random->ShareOf(group_.size())];
      const auto before = graph_.Predecessors(member), after = graph_.Successors(member);
      if (before.empty() && after.empty()) break;
      const std::size_t i = random->ShareOf(before.size() + after.size());
      const OperatorId other = i < before.size() ? before[i].op : after[i - before.size()].op;
      if (now_.device[other] == from && std::ranges::find(group_, other) == group_.end())
        group_.push_back(other);
    }
    std::size_t low = place_[op], high = low;
    for (const OperatorId member : group_) {
      if (graph_.Time(member, device) >= kFar) return false;
      low = std::min(low, place_[member]);
      high = std::max(high, place_[member]);
    }
    Remember(low, high);
    for (const OperatorId member : group_) {
      ChangeDevice(member, device);
      Separate(place_[member]);
      Separate(place_[member] + 1);
    }
    return true;
  }

  bool SetDevice(OperatorId op, MersenneTwister* random) {
    const auto device = static_cast<DeviceId>(random->ShareOf(graph_.devices()));
    return PutOn(op, device);
  }

  bool PutOn(OperatorId op, DeviceId device) {
    if (device == now_.device[op] || graph_.Time(op, device) >= kFar) return false;
    if (old_order_.empty()) Remember(place_[op], place_[op]);
    ChangeDevice(op, device);
    Separate(place_[op]);
    Separate(place_[op] + 1);
    return true;
  }

  void ChangeDevice(OperatorId op, DeviceId device) {
    old_devices_.emplace_back(op, now_.device[op]);
    now_.device[op] = device;
  }

  /// An operator and one near it go to each other's device.
  bool Exchange(OperatorId op, MersenneTwister* random) {
    const std::size_t at = place_[op], with = Near(at, random);
    const OperatorId partner = now_.order[with];
    const DeviceId here = now_.device[op], there = now_.device[partner];
    if (here == there || graph_.Time(op, there) >= kFar || graph_.Time(partner, here) >= kFar)
      return false;
    Remember(std::min(at, with), std::max(at, with));
    ChangeDevice(op, there);
    ChangeDevice(partner, here);
    for (const std::size_t i : {at, at + 1, with, with + 1}) Separate(i);
    return true;
  }

  /// First position of the stage of position `i`, and the one after its last.
  std::pair<std::size_t, std::size_t> StageOf(std::size_t i) const {
    std::size_t begin = i, end = i + 1;
    while (now_.SameStage(begin)) --begin;
    while (end < now_.order.size() && now_.SameStage(end)) ++end;
    return {begin, end};
  }

  /// An operator and one near it take each other's place, in order, device and stage.
  bool Swap(OperatorId op, MersenneTwister* random) {
    const auto [least, most] = Range(op);
    const std::size_t at = place_[op];
    const std::size_t low = std::max(least, at > kNear ? at - kNear : 0);
    const std::size_t with = low + random->ShareOf(std::min(most, at + kNear) - low + 1);
    const auto [i, k] = std::minmax(at, with);
    const OperatorId early = now_.order[i], late = now_.order[k];
    const DeviceId first = now_.device[early], second = now_.device[late];
    const auto [begin, end] = StageOf(i);
    if (k < end) return false;  // of one stage
    const std::size_t after = StageOf(k).second;
    if (Range(late).first > begin || Range(early).second + 1 < after) return false;
    if (graph_.Time(early, second) >= kFar || graph_.Time(late, first) >= kFar) return false;
    Remember(i, k);
    std::swap(now_.order[i], now_.order[k]);
    place_[early] = k;
    place_[late] = i;
    if (first != second) {
      ChangeDevice(early, second);
      ChangeDevice(late, first);
    }
    return true;
  }

  /// All operators of a stage go to another device.
  bool MoveStage(OperatorId op, MersenneTwister* random) {
    const auto device = static_cast<DeviceId>(random->ShareOf(graph_.devices()));
    const auto [begin, end] = StageOf(place_[op]);
    if (device == now_.device[op]) return false;
    for (std::size_t i = begin; i < end; ++i) {
      if (graph_.Time(now_.order[i], device) >= kFar) return false;
    }
    Remember(begin, end - 1);
    for (std::size_t i = begin; i < end; ++i) ChangeDevice(now_.order[i], device);
    Separate(begin);
    Separate(end);
    return true;
  }

  /// A stage goes to another place in the order, between other stages.
  bool ShiftStage(OperatorId op, MersenneTwister* random) {
    const auto [begin, end] = StageOf(place_[op]);
    std::size_t least = 0, most = now_.order.size() - 1;
    for (std::size_t i = begin; i < end; ++i) {
      const auto [low, high] = Range(now_.order[i]);
      least = std::max(least, low);
      most = std::min(most, high);
    }
    least = std::max(least, begin > kNear ? begin - kNear : 0);
    most = std::min(most, begin + kNear);
    const std::size_t target = least + random->ShareOf(most - least + 1);
    if (target >= begin && target < end) return false;
    const auto [from, to] = StageOf(target);
    if (target < begin && from >= least) {
      Rotate(from, begin, end);
    } else if (target >= end && to <= most + 1) {
      Rotate(begin, end, to);
    } else {
      return false;
    }
    return true;
  }

  /// Exchanges two neighbouring ranges of positions, each of whole stages.
  void Rotate(std::size_t begin, std::size_t middle, std::size_t end) {
    Remember(begin, end - 1);
    for (const std::size_t i : {begin, middle, end}) Separate(i);
    auto order = now_.order.begin();
    auto joins = now_.joins.begin();
    std::rotate(order + begin, order + middle, order + end);
    std::rotate(joins + begin, joins + middle, joins + end);
    for (std::size_t i = begin; i < end; ++i) place_[now_.order[i]] = i;
  }

  /// A position close to another one.
  std::size_t Near(std::size_t at, MersenneTwister* random) const {
    const std::size_t low = at > kNear ? at - kNear : 0;
    return low + random->ShareOf(std::min(2 * kNear, now_.order.size() - low));
  }

  /// An operator goes to the device of one beside it in the graph.
  bool FollowNeighbour(OperatorId op, MersenneTwister* random) {
    const auto before = graph_.Predecessors(op), after = graph_.Successors(op);
    if (before.empty() && after.empty()) return false;
    const std::size_t i = random->ShareOf(before.size() + after.size());
    const OperatorId other = i < before.size() ? before[i].op : after[i - before.size()].op;
    return PutOn(op, now_.device[other]);
  }

  /// Positions between which an operator can stand: after its predecessors, before its
  /// successors.
  std::pair<std::size_t, std::size_t> Range(OperatorId op) const {
    std::size_t low = 0, high = now_.order.size() - 1;
    for (const Neighbour& before : graph_.Predecessors(op))
      low = std::max(low, place_[before.op] + 1);
    for (const Neighbour& after : graph_.Successors(op))
      high = std::min(high, place_[after.op] - 1);
    return {low, high};
  }

  bool Shift(OperatorId op, MersenneTwister* random) {
    const auto [least, most] = Range(op);
    const std::size_t low = std::max(least, place_[op] > kNear ? place_[op] - kNear : 0);
    const std::size_t high = std::min(most, place_[op] + kNear);
    const std::size_t target = low + random->ShareOf(high - low + 1);
    if (target == place_[op]) return false;
    ShiftTo(op, target);
    return true;
  }

  void ShiftTo(OperatorId op, std::size_t target) {
    const std::size_t from = place_[op];
    Remember(std::min(from, target), std::max(from, target));
    auto order = now_.order.begin();
    if (from < target) {
      std::rotate(order + from, order + from + 1, order + target + 1);
      for (std::size_t i = from; i < target; ++i) now_.joins[i] = now_.joins[i + 1];
    } else {
      std::rotate(order + target, order + from, order + from + 1);
      for (std::size_t i = from; i > target; --i) now_.joins[i] = now_.joins[i - 1];
    }
    for (std::size_t i = std::min(from, target); i <= std::max(from, target); ++i)
      place_[now_.order[i]] = i;
    Separate(target);
    Separate(target + 1);
    // Where the operator stood, others have become neighbours.
    Separate(from < target ? from : from + 1);
  }

  void Separate(std::size_t i) {
    if (i < now_.joins.size()) now_.joins[i] = false;
  }

  bool Toggle(OperatorId op) {
    const std::size_t i = place_[op];
    Remember(i, i);
    if (now_.joins[i]) {
      now_.joins[i] = false;
      return true;
    }
    if (Join(i)) return true;
    Undo();
    return false;
  }

  /// An operator goes beside another one and into one stage with it.
  bool Pair(OperatorId op, MersenneTwister* random) {
    const std::size_t at = place_[op], other = Near(at, random);
    const OperatorId partner = now_.order[other];
    if (partner == op) return false;
    const std::size_t target = other < at ? other + 1 : other;  // just after the partner
    const auto [least, most] = Range(op);
    const DeviceId device = now_.device[partner];
    if (target < least || target > most || graph_.Time(op, device) >= kFar) return false;
    if (target == at) {
      Remember(at, at);
    } else {
      ShiftTo(op, target);
    }
    ChangeDevice(op, device);
    Separate(target);
    Separate(target + 1);
    if (Join(target)) return true;
    Undo();
    return false;
  }

  /// Puts a position into one stage with the one before it, where the rules allow that.
  bool Join(std::size_t i) {
    const OperatorId op = now_.order[i];
    if (i == 0 || now_.device[op] != now_.device[now_.order[i - 1]]) return false;
    now_.joins[i] = true;
    std::size_t begin = i, end = i + 1;
    while (now_.SameStage(begin)) --begin;
    while (end < now_.order.size() && now_.SameStage(end)) ++end;
    bool allowed = end - begin <= static_cast<std::size_t>(stage_);
    for (std::size_t k = begin; k < end && allowed; ++k) {
      const OperatorId member = now_.order[k];
      if (problem_.operator_time(member, now_.device[op]) == simulate::kNever) allowed = false;
      for (const Neighbour& before : graph_.Predecessors(member)) {
        if (place_[before.op] >= begin) allowed = false;
      }
    }
    if (!allowed) now_.joins[i] = false;
    return allowed;
  }

  const simulate::Problem& problem_;
  const TaskGraph& graph_;
  const int stage_;
  const bool loads_;
  StageSequence now_;
  std::vector<std::size_t> place_;
  std::vector<OperatorId> group_;
  // What the last move changed, as it was.
  std::vector<std::pair<OperatorId, DeviceId>> old_devices_;
  std::size_t begin_ = 0, first_ = 0;
  std::vector<OperatorId> old_order_;
  std::vector<bool> old_joins_;
};

/// Operators that the latency waits for: back from the last one, each by what ended last.
std::vector<OperatorId> CriticalOperators(const TaskGraph& graph, const StageSequence& sequence,
                                          const SequenceTimer& timer) {
  std::vector<OperatorId> last(graph.devices(), simulate::kNone), before(graph.size());
  std::vector<std::size_t> positions(sequence.order.size());
  std::iota(positions.begin(), positions.end(), std::size_t{0});
  if (timer.inserts()) {  // the order on a device is that of time, not of the sequence
    std::ranges::stable_sort(positions, {},
                             [&](std::size_t i) { return timer.Start(sequence.order[i]); });
  }
  OperatorId at = sequence.order[0];
  for (std::size_t i : positions) {
    const OperatorId o = sequence.order[i];
    OperatorId& on_device = last[sequence.device[o]];
    before[o] = sequence.SameStage(i) ? before[sequence.order[i - 1]] : on_device;
    on_device = o;
    if (timer.End(o) + graph.Lag(o) > timer.End(at) + graph.Lag(at)) at = o;
  }
  std::vector<OperatorId> critical;
  while (at != simulate::kNone) {
    critical.push_back(at);
    OperatorId next = before[at];
    std::int64_t latest = next == simulate::kNone ? -1 : timer.End(next);
    for (const Neighbour& from : graph.Predecessors(at)) {
      const std::int64_t there =
          Add(timer.End(from.op),
              graph.Communication(from.edge, sequence.device[from.op], sequence.device[at]));
      if (there <= latest) continue;
      latest = there;
      next = from.op;
    }
    at = next;
  }
  return critical;
}

/// Time of all copies between devices, those of one tensor counted for each reader.
std::int64_t CopyTime(const TaskGraph& graph, const StageSequence& sequence) {
  std::int64_t total = 0;
  for (std::size_t o = 0; o < graph.size(); ++o) {
    const auto op = static_cast<OperatorId>(o);
    for (const Neighbour& from : graph.Predecessors(op)) {
      // Several without a route would overflow.
      total = std::min(kFar, total + graph.Communication(from.edge, sequence.device[from.op],
                                                         sequence.device[op]));
    }
  }
  return total;
}

/// For how long the stages of a sequence occupy their devices.
class Occupancy {
 public:
  Occupancy(const simulate::Problem& problem, const TaskGraph& graph)
      : problem_(problem),
        graph_(graph),
        kept_(graph.size()),
        now_(graph.size()),
        pairs_(graph.size()) {}

  /// By how much the stages between two positions take longer than in the sequence kept
  /// last, which has the same operators there.
  std::int64_t Change(const StageSequence& sequence, std::size_t first, std::size_t last) {
    std::int64_t change = 0;
    looked_at_ += static_cast<std::int64_t>(last - first + 1);
    for (std::size_t begin = first, after; begin <= last; begin = after) {
      after = begin + 1;
      while (after < sequence.order.size() && sequence.SameStage(after)) ++after;
      now_[sequence.order[begin]] = Duration(sequence, begin, after);
      for (std::size_t i = begin + 1; i < after; ++i) now_[sequence.order[i]] = 0;
      for (std::size_t i = begin; i < after; ++i)
        change += now_[sequence.order[i]] - kept_[sequence.order[i]];
    }
    return change;
  }

  void Keep(const StageSequence& sequence, std::size_t first, std::size_t last) {
    for (std::size_t i = first; i <= last; ++i) kept_[sequence.order[i]] = now_[sequence.order[i]];
  }

  /// Operators that could have been timed meanwhile.
  std::int64_t work() const { return looked_at_ / 2; }

 private:
  /// The partner with which an operator was priced last, the device, and the time.
  struct Pair {
    OperatorId partner = simulate::kNone;
    DeviceId device = simulate::kNone;
    std::int64_t time = 0;
  };

  std::int64_t Duration(const StageSequence& sequence, std::size_t begin, std::size_t after) {
    const OperatorId leader = sequence.order[begin];
    const DeviceId device = sequence.device[leader];
    if (after == begin + 1) return graph_.Time(leader, device);
    Pair& pair = pairs_[leader];
    const bool two = after == begin + 2;
    if (two && pair.partner == sequence.order[begin + 1] && pair.device == device) return pair.time;
    members_.clear();
    for (std::size_t i = begin; i < after; ++i) {
      const OperatorId o = sequence.order[i];
      members_.push_back(
          {o, static_cast<std::int32_t>(i - begin), simulate::Nanoseconds{graph_.Time(o, device)}});
    }
    const std::int64_t time = problem_.concurrency.StageTime(device, members_).count;
    if (two) pair = {sequence.order[begin + 1], device, time};
    return time;
  }

  const simulate::Problem& problem_;
  const TaskGraph& graph_;
  std::vector<std::int64_t> kept_, now_;  // by operator: of its stage if it is the first, else 0
  std::vector<Pair> pairs_;
  std::int64_t looked_at_ = 0;
  std::vector<simulate::Member> members_;
};

}  // namespace

std::int64_t LatencyOf(const Instance& instance, const TaskGraph& graph,
                       const StageSequence& sequence) {
  return MakeTimer(instance, graph)->TimeAll(sequence);
}

StageSequence Anneal(const Instance& instance, const TaskGraph& graph, const StageSequence& given,
                     const Effort& effort, const Clock& clock) {
  if (given.order.empty()) return given;
  auto [timer, start] = MakeTimerFor(instance, graph, given);
  MersenneTwister random(effort.seed);
  Occupancy occupancy(instance.problem, graph);
  StageSequence best = start;
  std::int64_t least = kFar, moves = 0;
  double over = 0;  // part of the effort or of the time that is spent
  for (int round = 0; round < kRounds && least > effort.goal && over < 1; ++round) {
    Movable now(instance.problem, graph, best, effort.stage);
    std::int64_t latency = timer->TimeAll(now.sequence());
    least = std::min(least, latency);
    const double hot = kHot * static_cast<double>(least);
    const double begin = over, end = static_cast<double>(round + 1) / kRounds;
    const double weight = now.loads() ? kCopyWeight : 0;
    const bool weighs = effort.stage > 1 && !now.loads();
    if (weighs) {
      occupancy.Change(now.sequence(), 0, graph.size() - 1);
      occupancy.Keep(now.sequence(), 0, graph.size() - 1);
    }
    std::int64_t copying = weight > 0 ? CopyTime(graph, now.sequence()) : 0;
    std::vector<OperatorId> critical;
    double temperature = hot;
    for (; least > effort.goal; ++moves) {
      if (critical.empty() || moves % kRefresh == 0) {
        // A move that changes nothing counts, too.
        over = std::max(over, static_cast<double>(timer->work() + occupancy.work() + moves) /
                                  static_cast<double>(std::max<std::int64_t>(effort.operators, 1)));
        if (moves % (20 * kRefresh) == 0)
          over = std::max(over, clock(timer->work(), effort.operators));
        if (over >= end) break;
        if (timer->SortsFreely()) {
          now.SortByStart(*timer);
          timer->TimeAll(now.sequence());
        }
        critical = CriticalOperators(graph, now.sequence(), *timer);
        temperature = hot * std::pow(kCold / kHot, (over - begin) / (end - begin));
      }
      const OperatorId op = random.Unit() < kCritical
                                ? critical[random.ShareOf(critical.size())]
                                : static_cast<OperatorId>(random.ShareOf(graph.size()));
      const double threshold = -temperature * std::log(1 - random.Unit());
      if (!now.Move(op, &random)) continue;
      const std::int64_t copies = weight > 0 ? CopyTime(graph, now.sequence()) : 0;
      const std::size_t first = now.first(), last = now.last();
      const double longer =
          weighs ? kOccupancyWeight / static_cast<double>(graph.devices()) *
                       static_cast<double>(occupancy.Change(now.sequence(), first, last))
                 : 0;
      const std::int64_t limit =
          latency + static_cast<std::int64_t>(threshold - longer +
                                              weight * static_cast<double>(copying - copies));
      const std::int64_t found = timer->Time(now.sequence(), first, last, limit);
      if (found > limit) {
        now.Undo();
        continue;
      }
      timer->Keep();
      if (weighs) occupancy.Keep(now.sequence(), first, last);
      now.Keep();
      latency = found;
      copying = copies;
      assert(MakeTimerFor(instance, graph, given).first->TimeAll(now.sequence()) == latency);
      if (latency >= least) continue;
      least = latency;
      best = now.sequence();
    }
  }
  clock(effort.operators, effort.operators);
  return best;
}

}  // namespace tvm_sched::search
