// The busy intervals of a device or channel, one thing at a time, and the gaps between.
#ifndef TVM_SCHED_SEARCH_LANE_H_
#define TVM_SCHED_SEARCH_LANE_H_

#include <cstddef>
#include <limits>
#include <vector>

#include "simulate/units.h"

namespace tvm_sched::search {

/// Busy intervals, kept as the gaps between them and the moment from which all is free.
class Lane {
 public:
  using Nanoseconds = simulate::Nanoseconds;
  static constexpr std::size_t kAllGaps = std::numeric_limits<std::size_t>::max();

  /// \param most_gaps Gaps to remember, the longest ones; 0: nothing is put before what is there.
  explicit Lane(std::size_t most_gaps = 0) : most_gaps_(most_gaps) {}

  void Clear() {
    free_ = {};
    gaps_.clear();
  }

  /// From when on it has nothing to do.
  Nanoseconds free() const { return free_; }

  /// Least start, `ready` or later, of `duration` without work.
  Nanoseconds Earliest(Nanoseconds ready, Nanoseconds duration) const {
    if (ready >= free_) return ready;
    return gaps_.empty() ? free_ : EarliestInGap(ready, duration);
  }

  /// Takes an interval that is free, as `Earliest` finds it.
  ///
  /// What takes no time occupies nothing where all gaps are remembered; elsewhere it holds its
  /// place in the order.
  void Occupy(Nanoseconds start, Nanoseconds end) {
    if (most_gaps_ > 0) return OccupyGap(start, end);
    free_ = end;
  }

  /// Takes back an interval; only where all gaps are remembered.
  void Release(Nanoseconds start, Nanoseconds end);

 private:
  struct Gap {
    Nanoseconds begin, end;
  };

  Nanoseconds EarliestInGap(Nanoseconds ready, Nanoseconds duration) const;
  void OccupyGap(Nanoseconds start, Nanoseconds end);
  void Remember(Gap gap);

  std::size_t most_gaps_;
  Nanoseconds free_;
  /// In order of time. Where all are remembered there is one before each interval, at times
  /// empty.
  std::vector<Gap> gaps_;
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_LANE_H_
