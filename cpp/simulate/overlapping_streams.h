// Times of schedules whose streams overlap (docs/model.md, "Parallel operators").
#ifndef TVM_SCHED_SIMULATE_OVERLAPPING_STREAMS_H_
#define TVM_SCHED_SIMULATE_OVERLAPPING_STREAMS_H_

#include "simulate/problem.h"
#include "simulate/rules.h"
#include "simulate/schedule.h"
#include "simulate/simulate.h"

namespace tvm_sched::simulate {

/// Walks through time: the operators that run at a moment on one device share it.
///
/// O(events x operators that run at once). The schedule must break no rule.
Times OverlapStreams(const Problem& problem, const Schedule& schedule, const Arrivals& arrivals);

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_OVERLAPPING_STREAMS_H_
