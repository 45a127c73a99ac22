// Parameters that remain on the devices from run to run, and the steps that a warm run needs not do
// (docs/model.md, "Cold and warm").
#ifndef TVM_SCHED_RUNTIME_RESIDENCY_H_
#define TVM_SCHED_RUNTIME_RESIDENCY_H_

#include <string>
#include <variant>
#include <vector>

#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// Which parameters remain: a part of the bytes that are moved, from 0 to 1, or names.
using Resident = std::variant<double, std::vector<std::string>>;

/// By parameter: the steps that move it, loads and the copies after them; empty lists for those
/// that are read where they lie.
std::vector<std::vector<int>> StepsOfParameters(const Plan& plan);

/// By step: whether a warm run needs not do it; empty where that is no step.
///
/// A part takes parameters in the plan's order for as long as their bytes stay within it. Names
/// that the plan lacks are passed over. Throws std::invalid_argument where a parameter's place in
/// an arena is used by other tensors, too, so that it can't remain.
std::vector<bool> StepsSkippedWhenWarm(const Plan& plan, const Resident& resident);

/// Where the buffers of a plan's arenas lie.
struct ArenaLayout {
  std::vector<Bytes> offsets;  // of each buffer in its arena; 0 of those that lie in none
  std::vector<Bytes> sizes;    // of each device's arena
};

/// By buffer: whether a step that a warm run skips brings it, so that it may lie outside the arena.
std::vector<bool> BroughtBy(const Plan& plan, const std::vector<bool>& skipped);

/// The plan's layout without some of its buffers: those that are left move together, and those
/// that share bytes still do.
ArenaLayout CloseGaps(const Plan& plan, const std::vector<bool>& elsewhere);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_RESIDENCY_H_
