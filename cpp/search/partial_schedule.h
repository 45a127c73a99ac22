// A schedule while it grows: events are appended one by one, each timed by the rules of
// docs/model.md, as python/tvm_sched/schedulers/common/partial.py does it for solvers.
#ifndef TVM_SCHED_SEARCH_PARTIAL_SCHEDULE_H_
#define TVM_SCHED_SEARCH_PARTIAL_SCHEDULE_H_

#include <span>
#include <utility>
#include <vector>

#include "instance.h"

namespace tvm_sched::search {

/*! \brief An operator that runs, with its host tensors on the device or read over the bus
 * (kDirect), or a tensor that moves from `source` (kHost: it is loaded) to `device`. */
struct Event {
  enum class Kind : int8_t { kRun = 0, kDirect = 1, kMove = 2 };

  Kind kind;
  int32_t item;
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

/*! \brief What it takes to run one operator somewhere: the moves before it, and when it ends. */
struct Plan {
  Nanoseconds end;
  Sequence moves;
  Event run;
};

class PartialSchedule {
 public:
  /*!
   * \param memory_scale Share of each device's memory that may be used.
   * \param backfill Loads that are planned take the first gap of their bus that holds them instead
   * of its end; then events do not stand in the order of their starts (see `SortedByStart`).
   */
  PartialSchedule(const Instance& instance, double memory_scale, bool backfill = false);

  void Clear();

  const Sequence& events() const { return events_; }
  const std::vector<Nanoseconds>& starts() const { return starts_; }
  const std::vector<Nanoseconds>& ends() const { return ends_; }
  Nanoseconds latency() const { return latency_; }
  const Instance& instance() const { return *instance_; }
  DeviceId placed(OperatorId op) const { return placed_[op]; }

  /*! \brief When a tensor is on a device to which it was brought, or kNever. */
  Nanoseconds At(TensorId tensor, DeviceId device) const { return at_(tensor, device); }
  /*! \brief Whether a run reads `tensor` from its device, to which it then must have come. */
  bool Reads(const Event& run, TensorId tensor) const;
  bool CanMove(const Event& move) const;
  /*! \brief Whether the tensor can be copied from `source` as it stands. */
  bool IsSource(TensorId tensor, DeviceId source) const;

  /*! \brief Appends an event whose inputs are there; returns its end. */
  Nanoseconds Append(const Event& event);
  /*! \brief The earliest end of an operator there, each missing tensor on its fastest way; false
   * where that is impossible or memory does not suffice. */
  bool MakePlan(OperatorId op, DeviceId device, bool direct, Plan* plan);
  /*! \brief The moves that bring a tensor there first; false where there is no way. */
  bool FastestWay(TensorId tensor, DeviceId device, Sequence* moves);
  void Place(const Plan& plan);
  /*! \brief Whether every device has room for what was brought to it, by the order of events. */
  bool Fits() const;
  /*! \brief The events in the order of their starts, which is the order on every channel. */
  Sequence SortedByStart() const;

 private:
  /*! \brief Gaps to remember on a channel; the shortest is forgotten. */
  static constexpr size_t kMostGaps = 32;

  struct Way {
    Nanoseconds arrival = kNever;
    int hops = 0;
    Event move[2];
  };
  struct Gap {
    Nanoseconds begin, end;
  };

  Nanoseconds RunOperator(const Event& run, Nanoseconds* start);
  Nanoseconds MoveTensor(const Event& move, Nanoseconds* start);
  void Arrive(TensorId tensor, DeviceId device, Nanoseconds when);
  void Release(OperatorId op);
  Way FindWay(TensorId tensor, DeviceId device, bool transits) const;
  bool TryPlan(const Event& run, bool transits, Plan* plan);
  void Reserve(const Way& way);
  /*! \brief When a transfer that may begin at `ready` can begin, what is planned included. */
  Nanoseconds FirstStart(int32_t route, Nanoseconds ready, Nanoseconds duration) const;
  Nanoseconds PlannedUntil(ChannelId channel) const;
  void AddGap(ChannelId channel, Gap gap);
  void Occupy(int32_t route, Nanoseconds start, Nanoseconds end);
  bool PlanFits(const Plan& plan);

  const Instance* instance_;
  bool backfill_;
  std::vector<Bytes> memory_;
  Sequence events_;
  std::vector<Nanoseconds> starts_, ends_;
  Nanoseconds latency_{};
  std::vector<Nanoseconds> device_free_, channel_free_;
  std::vector<std::vector<Gap>> gaps_;
  simulate::Matrix<Nanoseconds> at_;
  std::vector<std::pair<TensorId, DeviceId>> touched_;
  std::vector<std::vector<DeviceId>> holders_;
  std::vector<DeviceId> placed_;
  std::vector<int32_t> readers_left_;
  std::vector<int64_t> parameters_, live_, peak_;
  /*! \brief What the plan in the making occupies: channels and until when. */
  std::vector<std::pair<ChannelId, Nanoseconds>> planned_;
  std::vector<std::pair<DeviceId, std::pair<int64_t, int64_t>>> brought_;
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_PARTIAL_SCHEDULE_H_
