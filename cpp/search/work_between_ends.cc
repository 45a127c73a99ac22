#include "search/work_between_ends.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace tvm_sched::search {
namespace {

/// Least weighted sum of one time for each device, of different operators, as operators are
/// added. The heaviest devices count as those that run seeds.
class LeastSum {
 public:
  LeastSum(const Side& side, std::span<const double> weights)
      : side_(side),
        seeds_(std::min(side.seeds, weights.size())),
        others_(weights.subspan(seeds_)) {
    for (double weight : weights.first(seeds_)) seed_weight_ += weight;
  }

  void Clear() {
    anywhere_ = std::numeric_limits<double>::infinity();
    smallest_.clear();
  }

  void Add(std::size_t op) {
    bool changed = side_.anywhere[op] < anywhere_;
    anywhere_ = std::min(anywhere_, side_.anywhere[op]);
    const double time = side_.elsewhere[op];
    if (smallest_.size() < others_.size() || (!smallest_.empty() && time < smallest_.back())) {
      if (smallest_.size() == others_.size()) smallest_.pop_back();
      smallest_.insert(std::ranges::upper_bound(smallest_, time), time);
      changed = true;
    }
    if (changed) Recompute();
  }

  double total() const { return total_; }
  /// The largest time in the sum.
  double largest() const { return largest_; }

 private:
  void Recompute() {
    largest_ = anywhere_;
    total_ = seeds_ == 0 ? 0 : seed_weight_ * anywhere_;
    for (std::size_t d = 0; d < others_.size(); ++d) {
      if (d < smallest_.size() && smallest_[d] < std::numeric_limits<double>::infinity())
        largest_ = smallest_[d];
      total_ += others_[d] * largest_;
    }
  }

  const Side& side_;
  std::size_t seeds_;
  std::span<const double> others_;
  double seed_weight_ = 0, anywhere_ = 0, total_ = 0, largest_ = 0;
  /// The smallest times elsewhere, in ascending order, no more than there are other devices.
  std::vector<double> smallest_;
};

}  // namespace

WorkArgument WorkBetweenEnds(std::span<const double> work, const Side& start, const Side& after,
                             std::span<const double> weights, std::span<const std::int64_t> order,
                             std::span<const double> thresholds, double rounding) {
  WorkArgument best;
  LeastSum before(start, weights), behind(after, weights);
  for (std::size_t s = 0; s < thresholds.size(); ++s) {
    before.Clear();
    behind.Clear();
    double between = 0;
    std::size_t count = 0;
    for (std::int64_t op : order) {
      if (!(start.elsewhere[op] >= thresholds[s])) continue;
      before.Add(op);
      behind.Add(op);
      between += work[op];
      ++count;
      const double bound = before.total() + between + behind.total();
      if (bound > best.ns && bound > (before.largest() + behind.largest()) * (1 + rounding))
        best = {bound, s, count};
    }
  }
  return best;
}

}  // namespace tvm_sched::search
