#include "ffi/local_search.h"

#include <vector>

#include "ffi/events.h"
#include "ffi/records.h"
#include "runtime/throw.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;

TVM_FFI_STATIC_INIT_BLOCK() {
  TVM_SCHED_SETTINGS(WeightedRunObj, problem, share);
  TVM_SCHED_SETTINGS(LocalSearchSettingsObj, memory_scale, seed, goal_ns, other_runs);
  TVM_SCHED_METHODS(LocalSearchObj, (step, Step), (latency_ns, LatencyNs), (best, Best));
}

}  // namespace

LocalSearchObj::LocalSearchObj(const ProblemObj* problem, Integers sequence,
                               const LocalSearchSettingsObj* settings)
    : problem_(ffi::GetRef<ffi::ObjectRef>(problem)), other_runs_(settings->other_runs) {
  const search::Instance& own = problem->EventInstance();
  std::vector<search::WeightedRun> runs = {{&own, 1.0}};
  for (const ffi::Arc<WeightedRunObj>& other : other_runs_) {
    const search::Instance& instance = other->problem->EventInstance();
    TVM_SCHED_CHECK(instance.operators() == own.operators() &&
                        instance.tensors() == own.tensors() && instance.devices() == own.devices(),
                    ValueError)
        << "the runs of a search are of one graph on one machine";
    runs.push_back({&instance, other->share});
    runs[0].share -= other->share;
  }
  search_ = std::make_unique<search::LocalSearch>(
      runs, settings->memory_scale, SequenceOf(own, sequence),
      static_cast<std::uint64_t>(settings->seed), simulate::Nanoseconds{settings->goal_ns});
}

ffi::Tensor LocalSearchObj::Best() const { return TableOf(search_->best()); }

}  // namespace tvm_sched
