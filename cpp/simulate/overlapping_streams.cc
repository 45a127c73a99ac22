#include "simulate/overlapping_streams.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "simulate/precedence.h"

namespace tvm_sched::simulate {
namespace {

/// Nanoseconds of work that count as done: what rounding of rates can leave.
constexpr double kRest = 1e-6;

/// The operators that run on a device at a moment, and what is left of them.
class SharedDevice {
 public:
  SharedDevice(const Problem& problem, DeviceId device) : problem_(problem), device_(device) {}

  void Start(EventId event, OperatorId op, Nanoseconds work, Nanoseconds now) {
    Advance(now);
    events_.push_back(event);
    operators_.push_back(op);
    work_.push_back(static_cast<double>(work.count));
    start_.push_back(now);
    rest_.push_back(0);
    // What starts now shares the device with all that runs now; what started earlier has its place.
    for (std::size_t i = 0; i < rest_.size(); ++i) {
      if (start_[i] == now)
        rest_[i] = work_[i] * problem_.concurrency.Crowding(device_, operators_[i], operators_);
    }
    slowdown_ = problem_.concurrency.Slowdown(device_, operators_);
  }

  /// When the next operator ends if nothing else starts; kNever where none runs.
  Nanoseconds NextEnd() const {
    if (rest_.empty()) return kNever;
    const double left = *std::ranges::min_element(rest_) * slowdown_;
    return now_ + Nanoseconds{std::max<std::int64_t>(1, std::llround(std::ceil(left - kRest)))};
  }

  /// Ends what has no work left at `now`; returns the events.
  std::vector<EventId> End(Nanoseconds now) {
    Advance(now);
    std::vector<EventId> ended;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < rest_.size(); ++i) {
      if (rest_[i] <= kRest) {
        ended.push_back(events_[i]);
        continue;
      }
      events_[kept] = events_[i];
      operators_[kept] = operators_[i];
      work_[kept] = work_[i];
      start_[kept] = start_[i];
      rest_[kept++] = rest_[i];
    }
    events_.resize(kept);
    operators_.resize(kept);
    work_.resize(kept);
    start_.resize(kept);
    rest_.resize(kept);
    slowdown_ = problem_.concurrency.Slowdown(device_, operators_);
    return ended;
  }

 private:
  void Advance(Nanoseconds now) {
    const double done = static_cast<double>(now.count - now_.count) / slowdown_;
    for (double& rest : rest_) rest -= done;
    now_ = now;
  }

  const Problem& problem_;
  const DeviceId device_;
  Nanoseconds now_;
  double slowdown_ = 1;
  std::vector<EventId> events_;
  std::vector<OperatorId> operators_;
  std::vector<Nanoseconds> start_;
  std::vector<double> work_, rest_;
};

class Walk {
 public:
  Walk(const Problem& problem, const Schedule& schedule, const Arrivals& arrivals)
      : problem_(problem),
        schedule_(schedule),
        arrivals_(arrivals),
        precedence_(problem, schedule, arrivals),
        waits_(schedule.events()) {
    times_.start.resize(schedule.events());
    times_.end.resize(schedule.events());
    for (std::size_t d = 0; d < problem.devices.size(); ++d)
      devices_.emplace_back(problem, static_cast<DeviceId>(d));
    FindSuccessors();
    CountStreams();
  }

  Times Run() {
    Nanoseconds now;
    std::vector<EventId> free;
    for (std::size_t event = 0; event < schedule_.events(); ++event) {
      if (IsNode(static_cast<EventId>(event)) && waits_[event] == 0)
        free.push_back(static_cast<EventId>(event));
    }
    for (EventId event : free) Begin(event, now);
    while ((now = NextMoment()) != kNever) {
      std::vector<EventId> ended;
      while (!ends_.empty() && ends_.top().first == now) {
        ended.push_back(ends_.top().second);
        ends_.pop();
      }
      for (SharedDevice& device : devices_) {
        if (device.NextEnd() > now) continue;
        for (EventId event : device.End(now)) ended.push_back(event);
      }
      for (EventId event : ended) times_.end[event] = now;
      for (EventId event : ended) Release(event, now);
      while (!delayed_.empty() && delayed_.top().first == now) {
        const EventId event = delayed_.top().second;
        delayed_.pop();
        Start(event, now);
      }
    }
    for (std::size_t p = 0; p < schedule_.placements.size(); ++p)
      times_.latency = std::max(times_.latency, times_.end[p]);
    return std::move(times_);
  }

 private:
  bool IsNode(EventId event) const { return precedence_.Node(event) == event; }

  void FindSuccessors() {
    successors_.resize(schedule_.events());
    for (std::size_t event = 0; event < schedule_.events(); ++event) {
      if (!IsNode(static_cast<EventId>(event))) continue;
      for (EventId before : precedence_.Before(static_cast<EventId>(event))) {
        successors_[before].push_back(static_cast<EventId>(event));
        ++waits_[event];
      }
    }
  }

  /// Until when a device makes its streams ready, and whose operators wait for another
  /// stream.
  void CountStreams() {
    const auto placements = static_cast<EventId>(schedule_.placements.size());
    std::vector<std::set<std::int32_t>> streams(problem_.devices.size());
    for (const Placement& placement : schedule_.placements)
      streams[placement.device].insert(placement.stream);
    for (std::size_t d = 0; d < streams.size(); ++d) {
      const auto further = static_cast<std::int64_t>(streams[d].size()) - 1;
      ready_.push_back(
          Nanoseconds{arrivals_.overlaps[d] ? further * problem_.devices[d].stream_time.count : 0});
    }
    crosses_.resize(placements);
    for (EventId event = 0; event < placements; ++event) {
      const Placement& mine = schedule_.placements[event];
      if (!arrivals_.overlaps[mine.device]) continue;
      for (EventId before : precedence_.Before(event)) {
        if (before >= placements) continue;
        const Placement& other = schedule_.placements[before];
        if (other.device == mine.device && other.stream != mine.stream) crosses_[event] = true;
      }
    }
  }

  Nanoseconds NextMoment() const {
    Nanoseconds next = ends_.empty() ? kNever : ends_.top().first;
    if (!delayed_.empty()) next = std::min(next, delayed_.top().first);
    for (const SharedDevice& device : devices_) next = std::min(next, device.NextEnd());
    return next;
  }

  void Release(EventId event, Nanoseconds now) {
    for (EventId next : successors_[event]) {
      if (--waits_[next] == 0) Begin(next, now);
    }
  }

  /// Starts what waits for nothing any more, after what its stream takes.
  void Begin(EventId event, Nanoseconds now) {
    const auto placements = static_cast<EventId>(crosses_.size());
    const bool operates = event < placements;
    const DeviceId device = operates ? schedule_.placements[event].device
                                     : schedule_.transfers[event - placements].device;
    Nanoseconds at = std::max(now, ready_[device]);
    if (operates && crosses_[event]) at = at + problem_.devices[device].wait_time;
    if (at > now) {
      delayed_.push({at, event});
    } else {
      Start(event, now);
    }
  }

  void Start(EventId event, Nanoseconds now) {
    times_.start[event] = now;
    const auto placements = static_cast<EventId>(schedule_.placements.size());
    if (event >= placements) return StartTransfer(event, now);
    const Placement& placement = schedule_.placements[event];
    if (!precedence_.Members(event).empty()) return StartStage(event, now);
    const Nanoseconds alone = TimeAlone(problem_, placement);
    if (placement.direct) {
      const EventId read = placements + arrivals_.host_read[event];
      times_.start[read] = now;
      ends_.push({now + problem_.host_read_time(placement.op, placement.device), read});
    }
    if (arrivals_.overlaps[placement.device]) {
      devices_[placement.device].Start(event, placement.op, alone, now);
    } else {
      ends_.push({now + alone, event});
    }
  }

  void StartStage(EventId leader, Nanoseconds now) {
    const Nanoseconds end = now + precedence_.StageTime(leader);
    for (std::int32_t p : precedence_.Members(leader)) {
      times_.start[p] = now;
      ends_.push({end, p});
    }
  }

  void StartTransfer(EventId event, Nanoseconds now) {
    const auto x = event - static_cast<EventId>(schedule_.placements.size());
    const Transfer& transfer = schedule_.transfers[x];
    Nanoseconds end = now;
    if (!arrivals_.resident[x]) {
      const DeviceId source = transfer.kind == TransferKind::kCopy ? transfer.source : kHost;
      end = now + problem_.TransferTime(transfer.item, problem_.RouteOf(source, transfer.device));
    }
    if (end > now) {
      ends_.push({end, event});
    } else {  // it takes no time
      times_.end[event] = now;
      Release(event, now);
    }
  }

  using Ending = std::pair<Nanoseconds, EventId>;

  const Problem& problem_;
  const Schedule& schedule_;
  const Arrivals& arrivals_;
  const Precedence precedence_;
  Times times_;
  std::vector<std::vector<EventId>> successors_;
  std::vector<std::int32_t> waits_;
  std::vector<SharedDevice> devices_;
  std::vector<Nanoseconds> ready_;
  std::vector<bool> crosses_;
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> ends_, delayed_;
};

}  // namespace

Times OverlapStreams(const Problem& problem, const Schedule& schedule, const Arrivals& arrivals) {
  return Walk(problem, schedule, arrivals).Run();
}

}  // namespace tvm_sched::simulate
