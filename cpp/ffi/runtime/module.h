// The runtime module of kind "tvm_sched": plans, parameters, and imported kernels, callable from
// TVM's virtual machine, from Python and from C++.
#ifndef TVM_SCHED_FFI_RUNTIME_MODULE_H_
#define TVM_SCHED_FFI_RUNTIME_MODULE_H_

#include <tvm/ffi/extra/module.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/runtime/instance.h"
#include "ffi/runtime/parameters.h"
#include "ffi/runtime/states.h"
#include "ffi/runtime/timeline.h"
#include "runtime/processor.h"
#include "runtime/program.h"

namespace tvm_sched::runtime {

/// What runs a call: a plan, or the plan of a template for a size of each of its symbols.
struct Chosen {
  int index;
  std::vector<std::int64_t> sizes;
  bool operator==(const Chosen&) const = default;
};

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
  using Method = void (ScheduledModule::*)(tvm::ffi::PackedArgs, tvm::ffi::Any*);

  // The functions of the module. Each runs under the lock, but for runs and what has to wait for
  // their end.
  void Main(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void RunTimes(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void PlanOf(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void LoadParameters(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void SetParameter(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Configure(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void SetOptions(RunOptions options);
  /// A run that returns the model's results in their order. Each has memory of its own, which the
  /// caller may keep and change, also where the model returns an argument, or a tensor twice.
  void Results(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Copy(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  tvm::ffi::Tensor OwnCopy(const tvm::ffi::Tensor& tensor);
  void Prepare(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Sleep(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Wake(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Timeline(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Stages(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Latency(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Info(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Processor(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Plans(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Parameters(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void GetState(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void SetState(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void Threads(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  void SetThreads(tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  static bool OutsideTheLock(Method method);
  static const std::map<std::string, Method>& Methods();

  /// The lock, and what waits for an instance to be free.
  struct Gate {
    std::mutex mutex;
    std::condition_variable freed;
  };
  class Lease;

  /// Do `work` while no run is under way, and return what it does.
  tvm::ffi::Any AloneWithStates(const std::function<tvm::ffi::Any()>& work);

  /// The lock, once no run is under way; open to Ctrl-C.
  std::unique_lock<std::mutex> LockBetweenRuns();
  /// The lock, to change what runs read: a call of several segments sees one state.
  std::unique_lock<std::mutex> LockForChange();
  /// Throws ffi::Error (RuntimeError) where the module sleeps.
  void CheckAwake() const;
  /// Throws ffi::Error (RuntimeError) where this processor cannot run the kernels.
  void CheckProcessor() const;
  /// After a fork: what the parent's other threads held is nobody's.
  void LeaveParentBehind();
  /// The GPUs of a plan whose caller named none: those that are like the devices it was made for.
  const std::vector<int>& DefaultGpus();
  /// The plan that a function "tvm_sched.main:<name of a plan>" runs, if it is one of ours.
  std::optional<int> PlanOfFunction(std::string_view name) const;
  void RunPlan(int plan, tvm::ffi::PackedArgs args, tvm::ffi::Any* result);
  /// Run and return the outputs, which are an error where times are all that is asked for.
  void Run(const Chosen& chosen, std::vector<tvm::ffi::Tensor> arguments, tvm::ffi::Any* result);
  /// Run all segments, on emulated devices without values if so wanted; return the arguments and
  /// the outputs of each segment.
  std::vector<tvm::ffi::Tensor> Execute(const Chosen& first,
                                        std::vector<tvm::ffi::Tensor> arguments, bool times_only);
  /// Run one segment; return its outputs.
  std::vector<tvm::ffi::Tensor> RunSegment(const Chosen& chosen,
                                           std::vector<tvm::ffi::Tensor> arguments, bool times_only,
                                           Instance& instance, std::vector<LastRun>* runs);
  /// The model's results in their order, for the values of a call.
  std::vector<tvm::ffi::Tensor> ResultsOf(const std::vector<tvm::ffi::Tensor>& values,
                                          std::size_t arguments);
  /// The plan that takes these arguments, else the template; an error says what is allowed.
  static Chosen Choose(const std::vector<tvm::ffi::Tensor>& arguments, const PlanList& plans);
  /// Wait for a free instance, open to Ctrl-C.
  int Acquire();
  /// Tell kernel modules, which may hold parameters in layouts of their own, that values changed.
  void AnnounceParameters() const;
  /// Call a function of the kernel modules that have it.
  void CallImports(const char* function) const;
  /// Let them lay out the parameters of a plan, where values are new since that was done last.
  void PrepareKernels(std::size_t plan);
  /// Tell the driver, while it is not yet open, how many streams there will be on a GPU.
  void WantConnections() const;
  /// Open the GPUs of the first plan and make ready what its first run needs, if all parameters are
  /// there. What goes wrong is left to that run to tell.
  void PrepareGpus();
  /// A run of a plan with the options as they are. Under the lock.
  Request RequestFor(const Chosen& chosen);
  /// A chosen plan. Those of a template's last sizes are kept, among them this one if it `keeps`
  /// it.
  std::shared_ptr<const Plan> PlanFor(const Chosen& chosen, bool keeps);
  std::optional<tvm::ffi::Function> FindKernel(const std::string& name) const;

  std::string plans_json_;
  std::string metadata_json_;
  std::string lacking_;  // why the kernels cannot run here
  Level level_;          // whose kernels run
  PlanList plans_;
  std::unique_ptr<ParameterStore> parameters_;
  StateStore states_;
  /// Of the templates: the plans of their last sizes, the latest last.
  std::vector<std::pair<Chosen, std::shared_ptr<const Plan>>> kept_;
  std::vector<std::uint64_t> prepared_;  // of each plan: the version of parameters in its kernels
  RunOptions options_;
  bool segmented_ = false;                   // whether there are later segments
  Program program_;                          // that runs them
  std::optional<std::vector<int>> results_;  // which values of a call are the model's results
  std::optional<std::vector<int>> default_gpus_;
  std::vector<std::vector<bool>> skipped_;  // of each plan: its steps that a warm run skips
  Instance::Elsewhere elsewhere_;           // parameters that instances share on GPUs
  std::shared_ptr<cuda::Turns> turns_ = std::make_shared<cuda::Turns>();
  std::vector<LastRun> last_runs_;  // of each segment; empty if the last call failed
  std::vector<std::unique_ptr<Instance>> instances_;
  std::vector<bool> busy_;  // of each instance
  bool ran_ = false;
  bool asleep_ = false;

  // A pointer, so that a forked child can leave behind one that another thread holds for ever.
  std::unique_ptr<Gate> gate_ = std::make_unique<Gate>();
  int owner_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_MODULE_H_
