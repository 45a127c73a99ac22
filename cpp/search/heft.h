// HEFT and PEFT: list scheduling with insertion, on devices and on channels.
#ifndef TVM_SCHED_SEARCH_HEFT_H_
#define TVM_SCHED_SEARCH_HEFT_H_

#include "search/instance.h"
#include "search/task_graph.h"
#include "simulate/schedule.h"

namespace tvm_sched::search {

enum class ListMethod { kHeft, kPeft };

/// Each operator in order of priority, where it ends first (PEFT: ends first with the least
/// time ahead), in the first gap that is long enough; so are its loads and copies on their
/// channels.
///
/// Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for
/// heterogeneous computing" (IEEE TPDS 2002); Arabnejad and Barbosa, "List scheduling algorithm for
/// heterogeneous systems by an optimistic cost table" (IEEE TPDS 2014). Both take copies for free
/// of contention; here they queue.
///
/// O(tensors read x devices x gaps). Memory is not looked at.
/// \return A schedule without placements where an operator can be reached on no device.
simulate::Schedule ListSchedule(const Instance& instance, const TaskGraph& graph,
                                ListMethod method);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_HEFT_H_
