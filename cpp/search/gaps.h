// Busy intervals of a device or channel, with the gaps between them.
#ifndef TVM_SCHED_SEARCH_GAPS_H_
#define TVM_SCHED_SEARCH_GAPS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tvm_sched::search {

/*! \brief Sorted intervals that do not overlap, in nanoseconds. */
class Gaps {
 public:
  /*! \brief Least start, `ready` or later, of `duration` without work. */
  int64_t Earliest(int64_t ready, int64_t duration) const {
    int64_t start = ready;
    auto next = std::ranges::upper_bound(busy_, ready, {}, &Interval::end);
    for (; next != busy_.end() && next->begin < start + duration; ++next)
      start = std::max(start, next->end);
    return start;
  }

  /*! \brief An interval that takes no time occupies nothing. */
  void Occupy(int64_t begin, int64_t end) {
    if (begin == end) return;
    busy_.insert(std::ranges::upper_bound(busy_, begin, {}, &Interval::begin), {begin, end});
  }

  void Release(int64_t begin, int64_t end) {
    if (begin == end) return;
    busy_.erase(std::ranges::lower_bound(busy_, begin, {}, &Interval::begin));
  }

 private:
  struct Interval {
    int64_t begin, end;
  };
  std::vector<Interval> busy_;
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_GAPS_H_
