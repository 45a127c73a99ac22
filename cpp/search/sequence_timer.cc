#include "search/sequence_timer.h"

#include <algorithm>

#include "search/partial_schedule.h"

namespace tvm_sched::search {
namespace {

/// Least time between the end of each operator and the end of the run, lags included.
std::vector<std::int64_t> Tails(const TaskGraph& graph) {
  std::vector<std::int64_t> tail(graph.size());
  const auto& order = graph.TopologicalOrder();
  for (auto o = order.rbegin(); o != order.rend(); ++o) {
    tail[*o] = graph.Lag(*o);
    for (const Neighbour& next : graph.Successors(*o)) {
      std::int64_t shortest = kFar;
      for (std::size_t d = 0; d < graph.devices(); ++d)
        shortest = std::min(shortest, graph.Time(next.op, static_cast<DeviceId>(d)));
      tail[*o] = std::max(tail[*o], Add(shortest, tail[next.op]));
    }
  }
  return tail;
}

/// Copies wait for nothing and nothing is loaded: an operator's start follows from the ends
/// of its predecessors and of the one before it on its device.
///
/// What follows a change keeps its devices and its order, and so the longest path from each
/// operator to the end: whether the changed operators lead to a latency above the limit shows in
/// what follows them at once. Only changes that are within it are timed to the end.
class FreeTimer : public SequenceTimer {
 public:
  FreeTimer(const simulate::Problem& problem, const TaskGraph& graph)
      : problem_(problem),
        graph_(graph),
        tail_(Tails(graph)),
        kept_{std::vector<std::int64_t>(graph.size()), std::vector<std::int64_t>(graph.size()),
              simulate::Matrix<std::int64_t>(graph.size() + 1, graph.devices(), 0)},
        now_(kept_),
        place_(graph.size()),
        to_end_(graph.size()),
        positions_(graph.devices()) {}

  std::int64_t Time(const StageSequence& sequence, std::size_t from, std::size_t to,
                    std::int64_t limit) override {
    while (sequence.SameStage(from)) --from;
    Restore();
    first_ = touched_ = from;
    changed_ = to + 1;
    sequence_ = &sequence;
    if (!Run(to + 1, limit) || !Fits(limit) || !Run(sequence.order.size(), limit)) return kFar;
    std::int64_t latency = 0;
    for (std::size_t d = 0; d < graph_.devices(); ++d)
      latency = std::max(latency, now_.free(sequence.order.size(), d));
    if (problem_.lag.empty()) return latency;
    for (const OperatorId o : sequence.order)
      latency = std::max(latency, Add(now_.end[o], graph_.Lag(o)));
    return latency;
  }

  void Keep() override {
    const auto& order = sequence_->order;
    for (std::size_t i = first_; i < touched_; ++i) {
      const OperatorId o = order[i];
      kept_.start[o] = now_.start[o];
      kept_.end[o] = now_.end[o];
      for (std::size_t d = 0; d < graph_.devices(); ++d) kept_.free(i + 1, d) = now_.free(i + 1, d);
    }
    kept_order_ = order;
    first_ = touched_ = changed_ = 0;
    LookBack();
  }

  bool SortsFreely() const override { return true; }
  std::int64_t Start(OperatorId op) const override { return kept_.start[op]; }
  std::int64_t End(OperatorId op) const override { return kept_.end[op]; }

 private:
  struct State {
    std::vector<std::int64_t> start, end;  // by operator
    simulate::Matrix<std::int64_t> free;   // before each position, by device
  };

  /// Undoes what was timed and not kept. The positions are those of the kept order: a change
  /// permutes operators among the positions that it gave, so that all of these are put back even
  /// where the timing ended before the last.
  void Restore() {
    const std::size_t until = std::min(std::max(touched_, changed_), kept_order_.size());
    for (std::size_t i = first_; i < until; ++i) {
      const OperatorId o = kept_order_[i];
      now_.start[o] = kept_.start[o];
      now_.end[o] = kept_.end[o];
      for (std::size_t d = 0; d < graph_.devices(); ++d) now_.free(i + 1, d) = kept_.free(i + 1, d);
    }
    first_ = touched_ = changed_ = 0;
  }

  /// Goes on with the stages before position `until`; false where one ends too late.
  bool Run(std::size_t until, std::int64_t limit) {
    while (touched_ < until) {
      const std::size_t begin = touched_;
      std::size_t after = begin + 1;
      while (after < sequence_->order.size() && sequence_->SameStage(after)) ++after;
      touched_ = after;
      if (!RunStage(*sequence_, begin, after, limit)) return false;
    }
    return true;
  }

  /// Whether what follows the operators timed so far can end in time, all else kept.
  bool Fits(std::int64_t limit) const {
    const auto& order = sequence_->order;
    if (touched_ == order.size()) return true;
    for (std::size_t d = 0; d < graph_.devices(); ++d) {
      const auto next = std::ranges::lower_bound(positions_[d], touched_);
      if (next != positions_[d].end() && now_.free(touched_, d) + to_end_[order[*next]] > limit)
        return false;
    }
    for (std::size_t i = first_; i < touched_; ++i) {
      const DeviceId device = sequence_->device[order[i]];
      for (const Neighbour& to : graph_.Successors(order[i])) {
        if (place_[to.op] < touched_) continue;
        const std::int64_t arrival = Add(
            now_.end[order[i]], graph_.Communication(to.edge, device, sequence_->device[to.op]));
        if (arrival + to_end_[to.op] > limit) return false;
      }
    }
    return true;
  }

  /// Looks from the end of the sequence that is kept to its beginning.
  void LookBack() {
    const auto& order = sequence_->order;
    work_ += std::ssize(order);
    for (auto& positions : positions_) positions.clear();
    for (std::size_t i = 0; i < order.size(); ++i) {
      place_[order[i]] = i;
      positions_[sequence_->device[order[i]]].push_back(i);
    }
    on_device_.assign(graph_.devices(), 0);
    for (std::size_t after = order.size(), begin; after > 0; after = begin) {
      begin = after - 1;
      while (sequence_->SameStage(begin)) --begin;
      const DeviceId device = sequence_->device[order[begin]];
      std::int64_t longest = on_device_[device];
      for (std::size_t i = begin; i < after; ++i) {
        longest = std::max(longest, graph_.Lag(order[i]));
        for (const Neighbour& to : graph_.Successors(order[i])) {
          const std::int64_t copy = graph_.Communication(to.edge, device, sequence_->device[to.op]);
          longest = std::max(longest, Add(copy, to_end_[to.op]));
        }
      }
      longest += kept_.end[order[begin]] - kept_.start[order[begin]];
      for (std::size_t i = begin; i < after; ++i) to_end_[order[i]] = longest;
      on_device_[device] = longest;
    }
  }

  bool RunStage(const StageSequence& sequence, std::size_t begin, std::size_t after,
                std::int64_t limit) {
    const DeviceId device = sequence.device[sequence.order[begin]];
    std::int64_t start = now_.free(begin, device);
    work_ += static_cast<std::int64_t>(after - begin);
    for (std::size_t i = begin; i < after; ++i) {
      const OperatorId o = sequence.order[i];
      for (const Neighbour& from : graph_.Predecessors(o)) {
        start =
            std::max(start, Add(now_.end[from.op],
                                graph_.Communication(from.edge, sequence.device[from.op], device)));
      }
    }
    const std::int64_t end = Add(start, Duration(sequence, begin, after, device));
    bool below = true;
    for (std::size_t i = begin; i < after; ++i) {
      const OperatorId o = sequence.order[i];
      now_.start[o] = start;
      now_.end[o] = end;
      for (std::size_t d = 0; d < graph_.devices(); ++d) now_.free(i + 1, d) = now_.free(i, d);
      below = below && end + tail_[o] <= limit;
    }
    now_.free(after, device) = end;
    return below;
  }

  std::int64_t Duration(const StageSequence& sequence, std::size_t begin, std::size_t after,
                        DeviceId device) {
    if (after == begin + 1) return graph_.Time(sequence.order[begin], device);
    members_.clear();
    for (std::size_t i = begin; i < after; ++i) {
      const OperatorId o = sequence.order[i];
      members_.push_back(
          {o, static_cast<std::int32_t>(i - begin), simulate::Nanoseconds{graph_.Time(o, device)}});
    }
    return problem_.concurrency.StageTime(device, members_).count;
  }

  const simulate::Problem& problem_;
  const TaskGraph& graph_;
  const std::vector<std::int64_t> tail_;
  State kept_, now_;
  const StageSequence* sequence_ = nullptr;
  std::size_t first_ = 0, touched_ = 0;  // positions that are timed and not kept
  std::size_t changed_ = 0;              // end of those that the last change permuted
  // Of the sequence that is kept:
  std::vector<OperatorId> kept_order_;
  std::vector<std::size_t> place_;
  std::vector<std::int64_t> to_end_;                 // longest path from the start of an operator
  std::vector<std::vector<std::size_t>> positions_;  // of each device
  std::vector<std::int64_t> on_device_;              // longest path from the next operator
  std::vector<simulate::Member> members_;
};

/// Operators that insertion places in the time in which others are appended.
constexpr std::int64_t kWorkInGaps = 3;
/// Operators at whose loads the bound looks in the time in which one is placed.
constexpr std::int64_t kLookedAtOnce = 8;
/// Insertion is used if it shortens the start by more than one part in so many.
constexpr std::int64_t kLeastGain = 25;

/// What a bus still has to carry after each position of a sequence: a bound on the latency.
///
/// A parameter that one operator reads is loaded onto that operator's device, behind what the
/// sequence loads before it over the same bus.
class BusBound {
 public:
  explicit BusBound(const Instance& instance)
      : instance_(instance), load_(instance.operators(), instance.devices(), 0) {
    const simulate::Problem& problem = instance.problem;
    // Operators that overlap may take less together than one of them alone, and a device that
    // shares host memory may send on what it reads there.
    if (problem.concurrency.known() || !instance.sharing.empty()) return;
    for (std::size_t d = 0; d < instance.devices(); ++d) {
      const std::int32_t route = problem.RouteOf(kHost, static_cast<DeviceId>(d));
      const bool known = route != kNone && !problem.route_channels[route].empty();
      bus_.push_back(known ? problem.route_channels[route][0] : kNone);
      for (std::size_t o = 0; o < instance.operators() && known; ++o) {
        const auto op = static_cast<OperatorId>(o);
        if (instance.Duration(op, static_cast<DeviceId>(d), false) == kNever) continue;
        for (TensorId t : problem.inputs[op]) {
          if (!instance.OnHost(t) || instance.readers[t].size() > 1 || problem.tensors[t].resident)
            continue;
          load_(op, d) += problem.TransferTime(t, route).count;
          exists_ = true;
        }
      }
    }
    need_.resize(instance.operators());
  }

  /// Whether there is any such parameter.
  bool exists() const { return exists_; }

  /// Looks at a sequence; false where its loads alone take longer than `limit`.
  bool Start(const StageSequence& sequence, std::int64_t limit) {
    next_.assign(instance_.problem.channels, 0);
    for (std::size_t i = sequence.order.size(); i-- > 0;) {
      const OperatorId op = sequence.order[i];
      const DeviceId device = sequence.device[op];
      const std::int32_t bus = bus_[device];
      if (bus == kNone || load_(op, device) == 0) continue;
      const std::int64_t after =
          instance_.Duration(op, device, false).count + instance_.tail[op].count;
      next_[bus] = need_[i] = load_(op, device) + std::max(after, next_[bus]);
    }
    return std::ranges::all_of(next_, [&](std::int64_t need) { return need <= limit; });
  }

  /// Whether the run may end by `limit` if position `i` of the sequence is placed next.
  bool Allows(const StageSequence& sequence, std::size_t i, const PartialSchedule& placed,
              std::int64_t limit) const {
    const OperatorId op = sequence.order[i];
    const DeviceId device = sequence.device[op];
    if (bus_[device] == kNone || load_(op, device) == 0) return true;
    return placed.channel_free(bus_[device]).count + need_[i] <= limit;
  }

 private:
  const Instance& instance_;
  simulate::Matrix<std::int64_t>
      load_;                       // by operator and device: of parameters that no other reads
  std::vector<std::int32_t> bus_;  // by device: the first channel of its loads
  bool exists_ = false;
  std::vector<std::int64_t> need_, next_;  // by position, by channel
};

/// Appends stages while `allowed` says so of their first positions and none ends too late;
/// returns the number of positions before the stage that was refused.
template <typename Allowed>
std::size_t AppendWhile(const StageSequence& sequence, PartialSchedule* schedule,
                        std::int64_t limit, const Allowed& allowed) {
  std::int32_t number = 0;
  std::vector<std::int32_t> streams;  // 0, 1, ...
  for (std::size_t i = 0; i < sequence.order.size();) {
    if (!allowed(i)) return i;
    std::size_t after = i + 1;
    while (after < sequence.order.size() && sequence.SameStage(after)) ++after;
    while (streams.size() < after - i) streams.push_back(static_cast<std::int32_t>(streams.size()));
    const std::span<const OperatorId> ops(sequence.order.data() + i, after - i);
    const auto end = schedule->PlaceStage(ops, std::span(streams).first(ops.size()),
                                          sequence.device[ops[0]], ++number);
    if (end == kNever || Add(end.count, schedule->instance().tail[ops.back()].count) > limit)
      return i;
    i = after;
  }
  return sequence.order.size();
}

/// Any problem: the whole sequence is placed anew each time.
class WholeTimer : public SequenceTimer {
 public:
  explicit WholeTimer(const Instance& instance, bool inserts = false)
      : schedule_(instance, GrowthOf(inserts)),
        bus_bound_(instance),
        start_(instance.operators()),
        end_(instance.operators()),
        ends_by_tails_(!instance.problem.concurrency.known()),
        inserts_(inserts) {}

  static Growth GrowthOf(bool inserts) {
    return Growth::Plain(inserts ? Growth::Insertion::kAll : Growth::Insertion::kNone);
  }

  std::int64_t Time(const StageSequence& sequence, std::size_t, std::size_t,
                    std::int64_t limit) override {
    const std::int64_t count = std::ssize(sequence.order);
    const bool bounded = !inserts_ && bus_bound_.exists();
    // What the bound leaves out is not counted, but the look at the whole sequence is.
    work_ += bounded ? count / kLookedAtOnce : count * (inserts_ ? kWorkInGaps : 1);
    if (bounded && !bus_bound_.Start(sequence, limit)) return kFar;
    schedule_.Clear();
    const std::size_t placed =
        AppendWhile(sequence, &schedule_, ends_by_tails_ ? limit : kFar, [&](std::size_t i) {
          return !bounded || bus_bound_.Allows(sequence, i, schedule_, limit);
        });
    if (bounded) work_ += static_cast<std::int64_t>(placed);
    if (placed < sequence.order.size()) return kFar;
    const std::int64_t latency = schedule_.latency().count;
    return latency <= limit ? latency : kFar;
  }

  void Keep() override {
    for (std::size_t i = 0; i < schedule_.events().size(); ++i) {
      const Event& event = schedule_.events()[i];
      if (!event.is_run()) continue;
      start_[event.item] = schedule_.starts()[i].count;
      end_[event.item] = schedule_.ends()[i].count;
    }
  }

  bool SortsFreely() const override { return false; }
  bool inserts() const override { return inserts_; }
  std::int64_t Start(OperatorId op) const override { return start_[op]; }
  std::int64_t End(OperatorId op) const override { return end_[op]; }

 private:
  PartialSchedule schedule_;
  BusBound bus_bound_;
  std::vector<std::int64_t> start_, end_;
  /// Whether an operator's longest path to the end says when the run ends at the earliest:
  /// operators that overlap may take less together than one of them alone.
  bool ends_by_tails_;
  bool inserts_;
};

bool NothingContends(const simulate::Problem& problem) {
  for (const simulate::Tensor& tensor : problem.tensors) {
    if (tensor.in_host_memory()) return false;
  }
  // A tensor that two operators read on one device is copied once; an edge of each would copy it
  // twice, which is the same where copies wait for nothing and start when the tensor is made.
  return problem.route_channels.value.empty();
}

}  // namespace

bool Append(const StageSequence& sequence, PartialSchedule* schedule, std::int64_t limit) {
  return AppendWhile(sequence, schedule, limit, [](std::size_t) { return true; }) ==
         sequence.order.size();
}

std::int64_t SequenceTimer::TimeAll(const StageSequence& sequence) {
  const std::int64_t latency = Time(sequence, 0, sequence.order.size() - 1, kFar);
  Keep();
  return latency;
}

std::unique_ptr<SequenceTimer> MakeTimer(const Instance& instance, const TaskGraph& graph) {
  if (NothingContends(instance.problem))
    return std::make_unique<FreeTimer>(instance.problem, graph);
  return std::make_unique<WholeTimer>(instance);
}

std::pair<std::unique_ptr<SequenceTimer>, StageSequence> MakeTimerFor(
    const Instance& instance, const TaskGraph& graph, const StageSequence& sequence) {
  std::unique_ptr<SequenceTimer> timer = MakeTimer(instance, graph);
  if (timer->SortsFreely() || instance.problem.concurrency.known())
    return {std::move(timer), sequence};
  auto inserting = std::make_unique<WholeTimer>(instance, true);
  const StageSequence ranked{graph.PriorityOrder(), sequence.device, sequence.joins};
  const std::int64_t appended = timer->TimeAll(sequence), inserted = inserting->TimeAll(sequence),
                     in_turn = inserting->TimeAll(ranked);
  const std::int64_t shortest = std::min(inserted, in_turn);
  if (appended - shortest <= shortest / kLeastGain) return {std::move(timer), sequence};
  return {std::move(inserting), in_turn < inserted ? ranked : sequence};
}

PartialSchedule PlaceBest(const Instance& instance, const StageSequence& sequence) {
  PartialSchedule appended(instance, WholeTimer::GrowthOf(false));
  const bool can_run = Append(sequence, &appended);
  if (!instance.problem.concurrency.known()) {
    PartialSchedule inserted(instance, WholeTimer::GrowthOf(true));
    if (Append(sequence, &inserted) && (!can_run || inserted.latency() < appended.latency()))
      return inserted;
  }
  if (!can_run) appended.Clear();
  return appended;
}

}  // namespace tvm_sched::search
