#include "search/lane.h"

#include <algorithm>

namespace tvm_sched::search {

using simulate::Nanoseconds;

Nanoseconds Lane::EarliestInGap(Nanoseconds ready, Nanoseconds duration) const {
  auto gap = std::ranges::lower_bound(gaps_, ready + duration, {}, &Gap::end);
  for (; gap != gaps_.end(); ++gap) {
    const Nanoseconds start = std::max(gap->begin, ready);
    if (start + duration <= gap->end) return start;
  }
  return free_;
}

void Lane::OccupyGap(Nanoseconds start, Nanoseconds end) {
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

void Lane::Release(Nanoseconds start, Nanoseconds end) {
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

void Lane::Remember(Gap gap) {
  gaps_.push_back(gap);
  if (gaps_.size() <= most_gaps_) return;
  gaps_.erase(std::ranges::min_element(gaps_, {}, [](const Gap& g) { return g.end + -g.begin; }));
}

}  // namespace tvm_sched::search
