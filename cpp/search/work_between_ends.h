// The strongest argument about the work of operators that start late and are followed by much.
#ifndef TVM_SCHED_SEARCH_WORK_BETWEEN_ENDS_H_
#define TVM_SCHED_SEARCH_WORK_BETWEEN_ENDS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace tvm_sched::search {

/// Least times between one end of a run and each operator, in nanoseconds.
struct Side {
  /// On whatever device an operator runs.
  std::span<const double> anywhere;
  /// On a device that runs no seed.
  std::span<const double> elsewhere;
  /// Devices that may run a seed.
  std::size_t seeds = 0;
};

/// A time that devices need, the threshold of heads that gave it, and the number of
/// operators, of those with at least this head, that need it.
struct WorkArgument {
  double ns = 0;
  std::size_t threshold = 0;
  std::size_t operators = 0;
};

/// The strongest of the arguments of Lemmas 2 and 4 of `docs/proofs/device_work.md` over all
/// thresholds of heads and all prefixes of `order`.
///
/// O(thresholds x operators x devices), less where few operators have smaller times than those
/// before.
/// \param work Least weighted occupancy time, by operator.
/// \param weights Of the devices, in descending order.
/// \param order The operators.
/// \param rounding Part by which a bound must exceed the largest head plus tail that it counts.
WorkArgument WorkBetweenEnds(std::span<const double> work, const Side& start, const Side& after,
                             std::span<const double> weights, std::span<const std::int64_t> order,
                             std::span<const double> thresholds, double rounding);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_WORK_BETWEEN_ENDS_H_
