// Replays a sequence of events and repairs it where it is no longer consistent.
#ifndef TVM_SCHED_SEARCH_REPLAY_H_
#define TVM_SCHED_SEARCH_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "search/partial_schedule.h"

namespace tvm_sched::search {

class Replay {
 public:
  explicit Replay(const Instance& instance);

  /// Fills `state` with the schedule of a sequence, repaired; linear in events.
  ///
  /// The sequence has a run for each operator in topological order. Moves may stand anywhere: one
  /// that comes twice or whose source lacks the tensor is left out. One of a host tensor that
  /// nobody needs there brings it, instead, to the devices that need it and have no move for it. A
  /// run that misses a tensor brings it on the fastest path.
  /// \param limit Give up as soon as the latency must get above this.
  /// \return False where a run is impossible, memory does not suffice, or the latency is above it.
  bool Play(const Sequence& sequence, Nanoseconds limit, PartialSchedule* state);

 private:
  void FindNeeds(const Sequence& sequence, const PartialSchedule& state);
  bool PlayMove(const Event& move, PartialSchedule* state);

  const Instance& instance_;
  /// By tensor and device: the round in which it was needed there, or had a move.
  simulate::Matrix<std::int32_t> needed_, moved_;
  /// By tensor: devices that need it, for host tensors.
  std::vector<std::vector<DeviceId>> needing_;
  std::vector<TensorId> filled_;
  std::int32_t round_ = 0;
  Sequence path_;
};

/// Positions of events that the latency waits for: back from the last kernel, each begins
/// when the next one of the list ends.
std::vector<std::size_t> CriticalEvents(const PartialSchedule& state);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_REPLAY_H_
