// The least time between an operator and one that it dominates, when what lies between shares
// devices or pays for copies: branch and bound over the places of the operators.
#ifndef TVM_SCHED_SEARCH_REGION_H_
#define TVM_SCHED_SEARCH_REGION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulate/problem.h"

namespace tvm_sched::search {

/// Operators of a region in topological order, without the one before it; the last is the
/// one that is dominated. Times are nanoseconds in floating point, infinite where impossible.
struct Region {
  std::size_t devices = 0;
  /// By operator and option; option `i` is one of the device `i % devices`. Without prices
  /// there is one option for each device.
  simulate::Matrix<double> time;
  /// By operator and option; empty: nothing costs anything.
  simulate::Matrix<double> price;
  /// Price of a nanosecond of the region's time.
  double weight = 1;
  /// `from` is -1 for the operator before the region; `lag` by device of `from` and of `to`:
  /// least time between the end of one and the start of the other.
  struct Edge {
    std::int32_t from, to;
    simulate::Matrix<double> lag;
  };
  std::vector<Edge> edges;

  std::size_t options() const { return time.columns; }
  std::size_t operators() const { return options() == 0 ? 0 : time.value.size() / options(); }
  double Price(std::size_t o, std::size_t option) const {
    return price.value.empty() ? 0 : price(o, option);
  }
};

/// What no schedule gets below: the least, over an option for each operator, of the prices of
/// these options and of the weighted time between the end of the operator before the region and
/// the end of its last, as a bound for these options says.
///
/// For given options each operator starts no earlier than its predecessors and the lags allow, and
/// those of one device follow one another (Carlier's bound, EJOR 11, 1982, over sets by earliest
/// start).
/// \param nodes Options to look at; where they do not suffice, the longest path and the least
/// prices are the answer.
double LeastCost(const Region& region, std::int64_t nodes);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_REGION_H_
