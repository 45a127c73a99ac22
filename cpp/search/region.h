// The least time between an operator and one that it dominates, when what lies between shares
// devices or pays for copies: branch and bound over the places of the operators.
#ifndef TVM_SCHED_SEARCH_REGION_H_
#define TVM_SCHED_SEARCH_REGION_H_

#include <cstdint>
#include <vector>

#include "simulate/problem.h"

namespace tvm_sched::search {

/*! \brief Operators of a region in topological order, without the one before it; the last is the
 * one that is dominated. Times are nanoseconds in floating point, infinite where impossible. */
struct Region {
  size_t devices = 0;
  /*! \brief By operator and device. */
  simulate::Matrix<double> time;
  /*! \brief `from` is -1 for the operator before the region; `lag` by device of `from` and of `to`:
   * least time between the end of one and the start of the other. */
  struct Edge {
    int32_t from, to;
    simulate::Matrix<double> lag;
  };
  std::vector<Edge> edges;

  size_t operators() const { return devices == 0 ? 0 : time.value.size() / devices; }
};

/*!
 * \brief A time that no schedule gets below between the end of the operator before the region and
 * the end of its last: the least over all places of a bound for these places.
 *
 * For given places each operator starts no earlier than its predecessors and the lags allow, and
 * those of one device follow one another (Carlier's bound, EJOR 11, 1982, over sets by earliest
 * start).
 * \param nodes Places to look at; where they do not suffice, the longest path alone is the answer.
 */
double LeastTime(const Region& region, int64_t nodes);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_REGION_H_
