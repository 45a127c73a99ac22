// The runtime module of kind "tvm_sched": plans, parameters, and imported kernels, callable from
// TVM's virtual machine, from Python and from C++.
#ifndef TVM_SCHED_FFI_RUNTIME_MODULE_H_
#define TVM_SCHED_FFI_RUNTIME_MODULE_H_

#include <tvm/ffi/extra/module.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ffi/runtime/bound_plan.h"
#include "ffi/runtime/parameters.h"
#include "ffi/runtime/timeline.h"
#include "runtime/executor.h"

namespace tvm_sched::runtime {

class ScheduledModule final : public tvm::ffi::ModuleObj {
 public:
  /// Throws FormatError or ffi::Error where plans and embedded parameters make no sense.
  ScheduledModule(std::string plans_json, std::string metadata_json,
                  const ParameterStore::Embedded& embedded);

  static tvm::ffi::Module Make(const tvm::ffi::String& plans_json,
                               const tvm::ffi::String& metadata_json,
                               const ParameterStore::Embedded& embedded);
  static tvm::ffi::Module LoadFromBytes(const tvm::ffi::Bytes& bytes);

  const char* kind() const final { return "tvm_sched"; }
  int GetPropertyMask() const final {
    return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable;
  }
  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final;
  tvm::ffi::Bytes SaveToBytes() const final;

 private:
  /// A plan with what a run of it needs, made at its first run.
  struct Runnable {
    std::shared_ptr<const Plan> plan;
    std::unique_ptr<Executor> executor;
    std::unique_ptr<BoundPlan> bound;
  };
  using Method = void (ScheduledModule::*)(tvm::ffi::PackedArgs, tvm::ffi::Any*);

  // The functions of the module. Each runs under the lock.
  void Main(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void PlanOf(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void LoadParameters(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void SetParameter(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Configure(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Timeline(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Latency(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Info(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Plans(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Parameters(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  static const std::map<std::string, Method>& Methods();

  /// Wait for the lock, open to Ctrl-C.
  std::unique_lock<std::timed_mutex> Lock();
  Runnable& Choose(const std::vector<tvm::ffi::Tensor>& arguments);
  std::vector<tvm::ffi::Tensor> Run(Runnable& runnable, std::vector<tvm::ffi::Tensor> arguments);
  RunRecord RunWithValues(Runnable& runnable, const std::vector<tvm::ffi::Tensor>& arguments,
                          const std::vector<tvm::ffi::Tensor>& outputs);
  /// Run on a backend; a step's error goes on with the operator's name.
  RunRecord Execute(Runnable& runnable, Backend& backend, const Bindings& bindings);
  /// One arena a device, large enough for every plan: runs follow each other, so plans share them.
  const BoundPlan::Arenas& Arenas(Backend& backend);
  /// Tell kernel modules, which may hold parameters in layouts of their own, that values changed.
  void AnnounceParameters() const;
  std::optional<tvm::ffi::Function> FindKernel(const std::string& name) const;

  std::string plans_json_;
  std::string metadata_json_;
  std::vector<Runnable> runnables_;
  std::unique_ptr<ParameterStore> parameters_;
  BoundPlan::Arenas arenas_;
  RunOptions options_;
  std::optional<LastRun> last_run_;

  // A pointer, so that a forked child can leave behind one that another thread holds for ever.
  std::unique_ptr<std::timed_mutex> mutex_ = std::make_unique<std::timed_mutex>();
  int owner_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_MODULE_H_
