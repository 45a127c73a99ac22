// List scheduling: operators by priority, each where it ends first.
#ifndef TVM_SCHED_SEARCH_LIST_SCHEDULE_H_
#define TVM_SCHED_SEARCH_LIST_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "search/partial_schedule.h"

namespace tvm_sched::search {

/// Where and how operators may be placed.
struct Choice {
  /// By device.
  std::vector<bool> device;
  /// Direct host access: a read takes the bus only once the operator can start, so a chain
  /// of them leaves the bus idle between.
  bool direct = true;
  /// How much later an operator may end that spares the buses a moment of copying.
  double copy_weight = 0;
};

/// Schedules all operators on an empty `state`, the free one of highest rank first.
/// \param turn By operator: the free one of least turn is taken in place of that of highest rank;
/// empty: none has one.
/// \param choices For each operator a position in `choice`; an operator that no place of its choice
/// can hold is placed anywhere.
/// \return False where an operator fits on no device.
bool ListSchedule(PartialSchedule* state, const std::vector<Choice>& choices,
                  const std::vector<std::int32_t>& choice,
                  const std::vector<std::int64_t>& turn = {});

/// The events of a schedule in an order in which no channel and no device waits while
/// something that it could do is there: the earliest possible start first; at the same time copies
/// before loads, loads by the start of their first reader, operators by rank; with turns, loads and
/// operators by turn.
Sequence Dispatch(const PartialSchedule& given, const std::vector<std::int64_t>& turn = {});

struct Constructed {
  /// In the order of their starts; none where memory does not suffice.
  Sequence events;
  Nanoseconds latency{};
};

/// A whole schedule by list scheduling, dispatched anew where that makes it shorter. Loads
/// may take gaps that earlier decisions left on a bus.
/// \param home As in `Growth`.
/// \param turn As in `ListSchedule`.
Constructed Construct(const Instance& instance, const std::vector<Choice>& choices,
                      const std::vector<std::int32_t>& choice, double memory_scale,
                      std::vector<DeviceId> home = {}, const std::vector<std::int64_t>& turn = {});

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_LIST_SCHEDULE_H_
