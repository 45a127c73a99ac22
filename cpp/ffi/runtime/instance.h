// What one run needs for itself: threads, arenas and bound kernels of each plan. Several instances
// of a module run at once and share its parameters.
#ifndef TVM_SCHED_FFI_RUNTIME_INSTANCE_H_
#define TVM_SCHED_FFI_RUNTIME_INSTANCE_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ffi/runtime/bound_plan.h"
#include "ffi/runtime/parameters.h"
#include "ffi/runtime/states.h"
#include "ffi/runtime/timeline.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/executor.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

using PlanList = std::vector<std::shared_ptr<const Plan>>;

/// A run before it begins: what was read under the module's lock.
struct Request {
  int index = 0;                     // in the list of plans
  std::shared_ptr<const Plan> plan;  // that one, or an instance of it if it is a template
  std::vector<tvm::ffi::Tensor> arguments;
  RunOptions options;
  std::vector<bool> skipped_when_warm;  // by step, or empty
  std::uint64_t parameters_version = 0;
};

class Instance {
 public:
  /// `turns` is that of all instances that share GPUs; `states` those of the module, which has one
  /// instance where there are any.
  Instance(const PlanList& plans, std::shared_ptr<cuda::Turns> turns, StateStore& states)
      : plans_(plans), states_(states), turns_(std::move(turns)), runnables_(plans.size()) {}

  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  /// By plan and buffer: parameters that lie on GPUs once for all instances, see BoundPlan.
  using Elsewhere = std::vector<std::vector<bool>>;

  /// Bind kernels, and the parameters as they are now. Under the module's lock.
  void Prepare(const Request& request, const Elsewhere& elsewhere, ParameterStore& parameters,
               const BoundPlan::Lookup& lookup);

  /// The same of a plan for GPUs, and what its kernels need before their first launch: before the
  /// first run, while parameters are read and pinned.
  void PrepareOnGpus(const Request& request, const Elsewhere& elsewhere, ParameterStore& parameters,
                     const BoundPlan::Lookup& lookup);

  /// Free the arenas, on GPUs also graphs and what lies in their memory; states come to the host's
  /// memory. Threads and GPUs' contexts stay. Returns the bytes of the arenas. Between runs.
  Bytes Sleep();

  /// Run without the lock; fills `outputs`. Throws what went wrong, as ffi::Error. On GPUs the
  /// calling thread's current streams are those of `arguments` and outputs on GPUs.
  LastRun Run(Request request, std::vector<tvm::ffi::Tensor>* outputs);

  /// The GPUs, once a plan that runs on GPUs was prepared.
  const std::shared_ptr<const cuda::Devices>& devices() const { return devices_; }

 private:
  struct Runnable {
    std::unique_ptr<Executor> executor;
    std::shared_ptr<BoundPlan> bound;  // that of the next run
    /// The last ones bound of a template's instances, the latest last.
    std::vector<std::pair<std::shared_ptr<const Plan>, std::shared_ptr<BoundPlan>>> kept{};
    std::unique_ptr<CudaBackend> cuda;
  };
  /// Whose parameters lie in the arenas since the last run.
  struct Warm {
    std::shared_ptr<const Plan> plan;
    std::uint64_t parameters_version;
    std::vector<bool> skipped;
    bool values;  // whether parameters really lie where they were brought
    bool operator==(const Warm&) const = default;
  };
  /// A graph of runs like one that was warm.
  struct Captured {
    Warm of;
    Places places;
    std::vector<std::byte*> memory;  // of the states that the run read and wrote, and of outputs
    std::function<void()> launch;
  };

  /// Arenas that are large enough for every plan and for this one.
  const BoundPlan::Arenas& Arenas(const Plan& plan);
  /// Make what binds a request's plan the one of the next run, if it was bound before.
  void TakeKept(const Request& request);
  /// Open the GPUs that the options name; others than before, or other parameters that lie
  /// elsewhere: let go of what lies there.
  void OpenDevices(const Plan& plan, const RunOptions& options, const Elsewhere& elsewhere);
  /// Let go of arenas and all that refers to them.
  void FreeMemory();
  RunRecord RunOnGpus(Request& request, const std::vector<bool>& skipped, const Warm& warm,
                      bool repeated, std::vector<tvm::ffi::Tensor>* outputs);
  /// The graph of such runs, which is captured where there is none yet.
  const Captured& CapturedLike(const Request& request, const std::vector<bool>& skipped,
                               const Warm& warm, const Places& places);
  RunRecord RunGraph(const Request& request, const std::vector<bool>& skipped, const Warm& warm,
                     const Places& places);
  static RunSettings Settings(const Request& request, const std::vector<bool>& skipped);
  RunRecord Execute(const Request& request, Backend& backend, const Bindings& bindings,
                    const std::vector<bool>& skipped);

  const PlanList& plans_;
  StateStore& states_;
  std::shared_ptr<cuda::Turns> turns_;
  // One arena a device, large enough for every plan: an instance's runs follow each other.
  BoundPlan::Arenas arenas_;
  std::vector<Bytes> arena_sizes_;
  std::vector<Runnable> runnables_;  // of each plan, made at its first run
  std::optional<Warm> warm_;
  std::shared_ptr<const cuda::Devices> devices_;  // of plans for GPUs
  std::vector<int> opened_;                       // the option that named them
  Elsewhere elsewhere_;
  std::vector<Captured> captured_;  // several where states or outputs change places, else one
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_INSTANCE_H_
