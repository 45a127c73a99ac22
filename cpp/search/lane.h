// What a device or a channel does, one thing at a time, and the gaps between.
#ifndef TVM_SCHED_SEARCH_LANE_H_
#define TVM_SCHED_SEARCH_LANE_H_

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "simulate/units.h"

namespace tvm_sched::search {

/*! \brief Busy intervals, kept as the gaps between them and the moment from which all is free. */
class Lane {
 public:
  using Nanoseconds = simulate::Nanoseconds;
  static constexpr size_t kAllGaps = std::numeric_limits<size_t>::max();

  /*! \param most_gaps Gaps to remember, the longest ones; 0: nothing is put before what is there.
   */
  explicit Lane(size_t most_gaps = 0) : most_gaps_(most_gaps) {}

  void Clear() {
    free_ = {};
    gaps_.clear();
  }

  /*! \brief From when on it has nothing to do. */
  Nanoseconds free() const { return free_; }

  /*! \brief Least start, `ready` or later, of `duration` without work. */
  Nanoseconds Earliest(Nanoseconds ready, Nanoseconds duration) const {
    if (ready >= free_) return ready;
    auto gap = std::ranges::lower_bound(gaps_, ready + duration, {}, &Gap::end);
    for (; gap != gaps_.end(); ++gap) {
      const Nanoseconds start = std::max(gap->begin, ready);
      if (start + duration <= gap->end) return start;
    }
    return free_;
  }

  /*!
   * \brief Takes an interval that is free, as `Earliest` finds it.
   *
   * What takes no time occupies nothing where all gaps are remembered; elsewhere it holds its place
   * in the order.
   */
  void Occupy(Nanoseconds start, Nanoseconds end) {
    if (start == end && most_gaps_ == kAllGaps) return;
    if (start >= free_) {
      if (most_gaps_ == kAllGaps || start > free_) Remember({free_, start});
      free_ = end;
      return;
    }
    const auto gap = std::ranges::lower_bound(gaps_, end, {}, &Gap::end);
    const Gap before{gap->begin, start}, after{end, gap->end};
    *gap = after;
    const auto first = gaps_.insert(gap, before);
    if (most_gaps_ == kAllGaps) return;
    gaps_.erase(std::remove_if(first, first + 2, [](const Gap& g) { return g.begin == g.end; }),
                first + 2);
  }

  /*! \brief Takes back an interval; only where all gaps are remembered. */
  void Release(Nanoseconds start, Nanoseconds end) {
    if (start == end) return;
    if (end == free_) {
      free_ = gaps_.back().begin;
      gaps_.pop_back();
      return;
    }
    const auto before = std::ranges::lower_bound(gaps_, start, {}, &Gap::end);
    const auto after = before + 1;
    before->end = after->end;
    gaps_.erase(after);
  }

 private:
  struct Gap {
    Nanoseconds begin, end;
  };

  void Remember(Gap gap) {
    if (most_gaps_ == 0) return;
    gaps_.push_back(gap);
    if (gaps_.size() <= most_gaps_) return;
    gaps_.erase(std::ranges::min_element(gaps_, {}, [](const Gap& g) { return g.end + -g.begin; }));
  }

  size_t most_gaps_;
  Nanoseconds free_;
  /*! \brief In order of time. Where all are remembered there is one before each interval, at times
   * empty. */
  std::vector<Gap> gaps_;
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_LANE_H_
