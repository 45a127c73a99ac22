// A schedule under construction: events are appended one by one, timed by docs/model.md.
#ifndef TVM_SCHED_SEARCH_PARTIAL_SCHEDULE_H_
#define TVM_SCHED_SEARCH_PARTIAL_SCHEDULE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "search/instance.h"
#include "search/lane.h"
#include "simulate/schedule.h"

namespace tvm_sched::search {

/// An operator that runs, with its host tensors on the device or read over the bus
/// (kDirect), or a tensor that moves from `source` (kHost: it is loaded) to `device`.
struct Event {
  enum class Kind : std::int8_t { kRun = 0, kDirect = 1, kMove = 2 };

  Kind kind;
  std::int32_t item;
  DeviceId source;
  DeviceId device;

  static Event Run(OperatorId op, DeviceId device, bool direct) {
    return {direct ? Kind::kDirect : Kind::kRun, op, kNone, device};
  }
  static Event Move(TensorId tensor, DeviceId source, DeviceId device) {
    return {Kind::kMove, tensor, source, device};
  }
  bool is_run() const { return kind != Kind::kMove; }
  bool is_direct() const { return kind == Kind::kDirect; }
  bool operator==(const Event&) const = default;
};

using Sequence = std::vector<Event>;

/// The schedule whose launch order and channel order are those of the sequence.
simulate::Schedule ScheduleOf(const Sequence& sequence);

/// What it takes to run one operator somewhere: the moves before it, and when it ends.
struct Extension {
  Nanoseconds end;
  Sequence moves;
  Event run;
  /// Time of the moves of tensors that some device has already.
  Nanoseconds copying{};
};

/// Where events may go in a partial schedule, and which paths tensors may take.
struct Growth {
  enum class Insertion {
    kNone,   // behind all that uses the same device or channel
    kLoads,  // loads also into the longest gaps of their bus
    kAll,    // everything also into gaps, however many there are
  };

  /// Share of each device's memory that may be used.
  double memory_scale = 1.0;
  Insertion insertion = Insertion::kNone;
  /// As published list schedulers have it: memory is not looked at, no parameter is loaded
  /// through a neighbour (parallel transmission), and of sources that are equally fast the first
  /// device is taken, not the one that had the tensor first.
  bool plain = false;
  /// By tensor: the device that alone loads a parameter for those that it reaches without a
  /// bus, so that it crosses one bus only; kNone: each device as is fastest. Empty: none has one.
  std::vector<DeviceId> home = {};

  static Growth Plain(Insertion insertion = Insertion::kNone) { return {1.0, insertion, true}; }
};

/// Events with their times, where each tensor is, and what each device holds.
///
/// With insertion, events do not stand in the order of their starts: see `SortedByStart` and
/// `ScheduleByStart`. Memory is counted by the order of events, not by time.
class PartialSchedule {
 public:
  explicit PartialSchedule(const Instance& instance, Growth growth = {});

  /// Back to nothing; keeps its memory.
  void Clear();

  const Sequence& events() const { return events_; }
  const std::vector<Nanoseconds>& starts() const { return starts_; }
  const std::vector<Nanoseconds>& ends() const { return ends_; }
  /// End of the last operator, each later by its lag.
  Nanoseconds latency() const { return latency_; }
  const Instance& instance() const { return *instance_; }
  /// Device of an operator, kNone while it has none.
  DeviceId placed(OperatorId op) const { return placed_[op]; }
  Nanoseconds device_free(DeviceId device) const { return device_[device].free(); }
  Nanoseconds channel_free(ChannelId channel) const { return channel_[channel].free(); }
  /// Devices to which a tensor was brought, in the order in which it got there.
  std::span<const DeviceId> Holders(TensorId tensor) const {
    return {&holders_(tensor, 0), static_cast<std::size_t>(held_[tensor])};
  }

  /// When a tensor is on a device to which it was brought, or kNever.
  Nanoseconds At(TensorId tensor, DeviceId device) const { return at_(tensor, device); }
  /// Whether a run reads `tensor` from its device, to which it then must have come.
  bool Reads(const Event& run, TensorId tensor) const {
    if (!instance_->OnHost(tensor)) return true;
    return !run.is_direct() && !problem_->devices[run.device].shares_host_memory;
  }
  bool CanMove(const Event& move) const;
  /// Whether the tensor can be copied from `source` as it stands.
  bool IsSource(TensorId tensor, DeviceId source) const;

  /// Adds an event whose inputs are there; returns its end.
  Nanoseconds Append(const Event& event);
  /// The earliest end of an operator there, each missing tensor on its fastest path; false
  /// where that is impossible or memory does not suffice.
  bool FindExtension(OperatorId op, DeviceId device, bool direct, Extension* extension);
  /// The moves that bring a tensor there first; false where there is no path.
  bool FastestPath(TensorId tensor, DeviceId device, Sequence* moves);
  void Place(const Extension& extension);
  /// Places an operator, with direct host access only where it cannot run otherwise; its
  /// end, or kNever where it or one of its tensors cannot get there.
  Nanoseconds Place(OperatorId op, DeviceId device);
  /// Places operators that start together, with their streams, as the stage of that number;
  /// one after another where nothing is known of their times together.
  Nanoseconds PlaceStage(std::span<const OperatorId> ops, std::span<const std::int32_t> streams,
                         DeviceId device, std::int32_t stage);

  /// Whether every device has room for what was brought to it, by the order of events.
  bool Fits() const;
  /// Bytes that the device lacks most of for an extension's events; 0 or less: none.
  std::int64_t Shortfall(const Extension& extension);

  /// The events in the order of their starts, which is the order on every channel.
  Sequence SortedByStart() const;
  /// Launch order and channel order are those of the events.
  simulate::Schedule Schedule() const;
  /// Launch order and channel order are those of time.
  simulate::Schedule ScheduleByStart() const;

 private:
  /// Gaps to remember on a channel where loads are inserted.
  static constexpr std::size_t kMostGaps = 32;

  /// The fastest path of a tensor to a device; the times are those of its last move.
  struct Path {
    Nanoseconds arrival = kNever, start;
    std::int32_t route = kNone;
    DeviceId source = kNone;
    /// 0: there is none; 2: the tensor is loaded into `source` first.
    int hops = 0;

    /// Replaces this path by another one that is faster.
    void Offer(const Path& other) {
      if (other.arrival >= arrival) return;
      arrival = other.arrival;  // each by itself: a copy of all would wait for stores of its parts
      start = other.start;
      route = other.route;
      source = other.source;
      hops = other.hops;
    }
  };
  /// Stream and stage of the event at a position.
  struct InStage {
    std::size_t event;
    std::int32_t stream, stage;
  };

  /// When all that a run reads from its device is there.
  Nanoseconds InputsReady(Event run) const;
  Nanoseconds RunOperator(Event run, Nanoseconds ready);
  Nanoseconds MoveTensor(Event move);
  Nanoseconds MoveTensor(Event move, std::int32_t route, Nanoseconds start, Nanoseconds end);
  void RecordRun(Event run, Nanoseconds end);
  void RecordEvent(Event event, Nanoseconds start, Nanoseconds end) {
    events_.push_back(event);
    starts_.push_back(start);
    ends_.push_back(end);
  }
  void Arrive(TensorId tensor, DeviceId device, Nanoseconds when) {
    if (!growth_.plain || at_(tensor, device) == kNever) holders_(tensor, held_[tensor]++) = device;
    at_(tensor, device) = when;
    if (!growth_.plain) Hold(tensor, device);
  }
  void Hold(TensorId tensor, DeviceId device);
  void Release(OperatorId op);
  /// Brings a tensor there if it is not; when it is, or kNever.
  Nanoseconds Bring(TensorId tensor, DeviceId device) {
    const Nanoseconds there = at_(tensor, device);
    return there != kNever ? there : Fetch(tensor, device);
  }
  Nanoseconds Fetch(TensorId tensor, DeviceId device);
  Path FindPath(TensorId tensor, DeviceId device, bool transits) const {
    return growth_.plain ? FindPlainPath(tensor, device)
                         : FindPathFromHolders(tensor, device, transits);
  }
  Path FindPathFromHolders(TensorId tensor, DeviceId device, bool transits) const;
  /// The device that loads a parameter for another one, or kNone.
  DeviceId HomeFor(TensorId tensor, DeviceId device) const;
  /// From host memory or the first of the devices.
  Path FindPlainPath(TensorId tensor, DeviceId device) const;
  bool TryExtension(const Event& run, bool transits, Extension* extension);
  /// Keeps the channels of an extension's move for the rest of the extension.
  void Reserve(std::int32_t route, Nanoseconds start, Nanoseconds end);
  void EndExtension();
  /// When a run whose tensors are there at `ready` can begin, its turn on the bus included.
  Nanoseconds FirstRun(Event run, Nanoseconds ready, Nanoseconds duration) const;
  /// When a transfer that may begin at `ready` can begin, what is reserved included.
  Nanoseconds FirstStart(std::int32_t route, Nanoseconds ready, Nanoseconds duration) const {
    if (growth_.insertion != Growth::Insertion::kNone || !reserved_until_.empty())
      return FirstGap(route, ready, duration);
    for (ChannelId c : problem_->route_channels[route]) ready = std::max(ready, channel_[c].free());
    return ready;
  }
  Nanoseconds FirstGap(std::int32_t route, Nanoseconds ready, Nanoseconds duration) const;
  Nanoseconds ReservedUntil(ChannelId channel) const;
  void Occupy(std::int32_t route, Nanoseconds start, Nanoseconds end) {
    for (ChannelId c : problem_->route_channels[route]) channel_[c].Occupy(start, end);
  }

  const Instance* instance_;
  const simulate::Problem* problem_;
  Growth growth_;
  std::vector<Bytes> memory_;
  Sequence events_;
  std::vector<Nanoseconds> starts_, ends_;
  std::vector<InStage> in_stage_;
  Nanoseconds latency_{};
  std::vector<Lane> device_, channel_;
  simulate::Matrix<Nanoseconds> at_;
  simulate::Matrix<DeviceId> holders_;
  std::vector<std::int32_t> held_;
  std::vector<DeviceId> placed_;
  std::vector<std::int32_t> readers_left_;
  std::vector<std::int64_t> parameters_, live_, peak_;
  /// What the extension in the making occupies: channels and until when; with full insertion
  /// the intervals, which their channels have.
  std::vector<std::pair<ChannelId, Nanoseconds>> reserved_until_;
  std::vector<std::tuple<std::int32_t, Nanoseconds, Nanoseconds>> reserved_;
  std::vector<std::pair<DeviceId, std::pair<std::int64_t, std::int64_t>>> brought_;
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_PARTIAL_SCHEDULE_H_
