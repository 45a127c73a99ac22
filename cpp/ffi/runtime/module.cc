#include "ffi/runtime/module.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/json.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ffi/runtime/errors.h"
#include "ffi/runtime/serialize.h"
#include "ffi/runtime/tensors.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/emulated/emulated_backend.h"
#include "runtime/plan_reader.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
using ffi::Tensor;

namespace {

/// Throws what Python has raised meanwhile: KeyboardInterrupt, mostly.
void PollSignals() {
  if (TVMFFIEnvCheckSignals() != 0) throw ffi::EnvErrorAlreadySet();
}

void ExpectArguments(const ffi::PackedArgs& args, int count, const char* signature) {
  if (args.size() == count) return;
  TVM_FFI_THROW(TypeError) << signature << " takes " << count << " arguments, got " << args.size();
}

std::vector<Tensor> TensorArguments(const ffi::PackedArgs& args) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < args.size(); ++i) {
    auto tensor = args[i].as<Tensor>();
    if (!tensor) {
      TVM_FFI_THROW(TypeError) << "argument " << i << " of main is " << args[i].GetTypeKey()
                               << ", expected a tensor";
    }
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

std::string Signature(const std::vector<TensorSpec>& specs) {
  std::string text = "(";
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (i) text += ", ";
    if (!specs[i].name.empty()) text += specs[i].name + ": ";
    text += specs[i].ToString();
  }
  return text + ")";
}

bool Takes(const Plan& plan, const std::vector<TensorSpec>& given) {
  if (plan.arguments.size() != given.size()) return false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!plan.arguments[i].SameType(given[i])) return false;
  }
  return true;
}

/// Releases what a run attached, also when the run failed.
class Attachment {
 public:
  explicit Attachment(BoundPlan& bound) : bound_(bound) {}
  ~Attachment() { bound_.Detach(); }
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

 private:
  BoundPlan& bound_;
};

}  // namespace

ScheduledModule::ScheduledModule(std::string plans_json, std::string metadata_json,
                                 const ParameterStore::Embedded& embedded)
    : plans_json_(std::move(plans_json)),
      metadata_json_(std::move(metadata_json)),
      owner_(getpid()) {
  std::vector<std::shared_ptr<const Plan>> plans;
  for (Plan& plan : ReadPlans(plans_json_)) {
    plans.push_back(std::make_shared<const Plan>(std::move(plan)));
    runnables_.push_back({plans.back(), std::make_unique<Executor>(plans.back()), nullptr});
  }
  parameters_ = std::make_unique<ParameterStore>(plans, embedded);
}

ffi::Module ScheduledModule::Make(const ffi::String& plans_json, const ffi::String& metadata_json,
                                  const ParameterStore::Embedded& embedded) {
  return TranslateErrors([&] {
    return ffi::Module(ffi::make_object<ScheduledModule>(plans_json, metadata_json, embedded));
  });
}

ffi::Module ScheduledModule::LoadFromBytes(const ffi::Bytes& bytes) {
  return TranslateErrors([&] {
    ModuleContent content = Deserialize(bytes);
    return ffi::Module(ffi::make_object<ScheduledModule>(
        std::move(content.plans_json), std::move(content.metadata_json), content.embedded));
  });
}

ffi::Bytes ScheduledModule::SaveToBytes() const {
  return TranslateErrors(
      [&] { return Serialize({plans_json_, metadata_json_, parameters_->embedded()}); });
}

const std::map<std::string, ScheduledModule::Method>& ScheduledModule::Methods() {
  static const std::map<std::string, Method> methods{
      {"main", &ScheduledModule::Main},
      {"tvm_sched.main", &ScheduledModule::Main},
      {"plan_of", &ScheduledModule::PlanOf},
      {"load_parameters", &ScheduledModule::LoadParameters},
      {"set_parameter", &ScheduledModule::SetParameter},
      {"configure", &ScheduledModule::Configure},
      {"timeline", &ScheduledModule::Timeline},
      {"latency", &ScheduledModule::Latency},
      {"info", &ScheduledModule::Info},
      {"plans", &ScheduledModule::Plans},
      {"parameters", &ScheduledModule::Parameters},
  };
  return methods;
}

ffi::Optional<ffi::Function> ScheduledModule::GetFunction(const ffi::String& name) {
  auto found = Methods().find(name);
  if (found == Methods().end()) return std::nullopt;
  // The function keeps the module alive.
  auto self = ffi::detail::ObjectUnsafe::ObjectPtrFromUnowned<ScheduledModule>(this);
  return ffi::Function::FromPacked(
      [self, method = found->second](ffi::PackedArgs args, ffi::Any* result) {
        TranslateErrors([&] {
          auto lock = self->Lock();
          (self.get()->*method)(args, result);
        });
      });
}

std::unique_lock<std::timed_mutex> ScheduledModule::Lock() {
  if (owner_ != getpid()) {
    // A forked child: the lock may be held by a thread that only the parent has.
    static_cast<void>(mutex_.release());
    mutex_ = std::make_unique<std::timed_mutex>();
    owner_ = getpid();
  }
  std::unique_lock lock(*mutex_, std::defer_lock);
  while (!lock.try_lock_for(std::chrono::milliseconds(20))) PollSignals();
  return lock;
}

void ScheduledModule::Main(ffi::PackedArgs args, ffi::Any* result) {
  std::vector<Tensor> arguments = TensorArguments(args);
  Runnable& runnable = Choose(arguments);
  std::vector<Tensor> outputs = Run(runnable, std::move(arguments));
  if (outputs.size() == 1) {
    *result = outputs[0];
  } else {
    *result = ffi::Array<Tensor>(outputs.begin(), outputs.end());
  }
}

void ScheduledModule::PlanOf(ffi::PackedArgs args, ffi::Any* result) {
  *result = ffi::String(Choose(TensorArguments(args)).plan->name);
}

ScheduledModule::Runnable& ScheduledModule::Choose(const std::vector<Tensor>& arguments) {
  std::vector<TensorSpec> given;
  for (const Tensor& tensor : arguments) given.push_back(SpecOf(tensor));
  for (Runnable& runnable : runnables_) {
    if (Takes(*runnable.plan, given)) return runnable;
  }
  std::string known;
  for (const Runnable& runnable : runnables_) {
    known += "\n  plan \"" + runnable.plan->name + "\": " + Signature(runnable.plan->arguments);
  }
  TVM_FFI_THROW(ValueError) << "no plan of this module takes arguments " << Signature(given)
                            << "; it has" << known;
  TVM_FFI_UNREACHABLE();
}

std::vector<Tensor> ScheduledModule::Run(Runnable& runnable, std::vector<Tensor> arguments) {
  const Plan& plan = *runnable.plan;
  const bool emulated = plan.backend == BackendKind::kEmulated;
  const bool values = !emulated || options_.emulate_values;
  std::vector<Tensor> outputs;
  for (const TensorSpec& spec : plan.outputs) outputs.push_back(AllocateTensor(spec, !values));
  last_run_.reset();

  double scale = 1.0;
  RunRecord record;
  if (emulated) {
    scale = options_.emulation_scale.value_or(ChooseScale(plan));
    EmulatedBackend backend(scale);
    record = Execute(runnable, backend, {});
  }
  if (values) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      arguments[i] = ReadyForKernel(arguments[i], "argument " + std::to_string(i));
    }
    RunRecord real = RunWithValues(runnable, arguments, outputs);
    if (!emulated) record = std::move(real);
  }
  last_run_ = LastRun{runnable.plan, std::move(record), scale, options_.trace};
  return outputs;
}

RunRecord ScheduledModule::RunWithValues(Runnable& runnable, const std::vector<Tensor>& arguments,
                                         const std::vector<Tensor>& outputs) {
  parameters_->Require(*runnable.plan);
  CpuBackend backend;
  if (!runnable.bound) {
    runnable.bound =
        std::make_unique<BoundPlan>(runnable.plan, Arenas(backend),
                                    [this](const std::string& name) { return FindKernel(name); });
  }
  Attachment attachment(*runnable.bound);
  runnable.bound->Attach(arguments, *parameters_, outputs);
  return Execute(runnable, backend, runnable.bound->bindings());
}

const BoundPlan::Arenas& ScheduledModule::Arenas(Backend& backend) {
  if (!arenas_.empty()) return arenas_;
  std::vector<Bytes> sizes;
  for (const Runnable& runnable : runnables_) {
    const std::vector<Device>& devices = runnable.plan->devices;
    sizes.resize(std::max(sizes.size(), devices.size()));
    for (std::size_t d = 0; d < devices.size(); ++d)
      sizes[d] = std::max(sizes[d], devices[d].arena);
  }
  BoundPlan::Arenas arenas;
  for (Bytes size : sizes) arenas.push_back(backend.Allocate(size));
  return arenas_ = std::move(arenas);
}

RunRecord ScheduledModule::Execute(Runnable& runnable, Backend& backend, const Bindings& bindings) {
  try {
    return runnable.executor->Run(backend, bindings, PollSignals);
  } catch (const StepError& error) {
    RethrowStepError(*runnable.plan, error);
  }
}

std::optional<ffi::Function> ScheduledModule::FindKernel(const std::string& name) const {
  for (const ffi::Any& import : imports()) {
    auto module = import.cast<ffi::Module>();
    if (auto function = module->GetFunction(name, /*query_imports=*/true)) return *function;
  }
  return ffi::Function::GetGlobal(name);
}

void ScheduledModule::LoadParameters(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 1, "load_parameters(path)");
  *result = parameters_->Load(args[0].cast<ffi::String>());
  AnnounceParameters();
}

void ScheduledModule::SetParameter(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 2, "set_parameter(name, tensor)");
  parameters_->Set(args[0].cast<ffi::String>(), args[1].cast<Tensor>());
  AnnounceParameters();
}

void ScheduledModule::AnnounceParameters() const {
  for (const ffi::Any& import : imports()) {
    auto module = import.cast<ffi::Module>();
    if (auto function = module->GetFunction("tvm_sched.parameters_changed")) (*function)();
  }
}

void ScheduledModule::Configure(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 1, "configure(options_json)");
  options_ = ReadOptions(args[0].cast<ffi::String>(), options_);
}

void ScheduledModule::Timeline(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "timeline()");
  if (!last_run_ || !last_run_->traced) {
    TVM_FFI_THROW(RuntimeError) << "no run was traced: call configure('{\"trace\": true}'), then "
                                   "main, then timeline()";
  }
  *result = WriteTimeline(*last_run_);
}

void ScheduledModule::Latency(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "latency()");
  if (!last_run_) {
    TVM_FFI_THROW(RuntimeError) << "nothing has run, or the last run failed: call main first";
  }
  *result = static_cast<std::int64_t>(last_run_->record.latency.count());
}

void ScheduledModule::Info(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "info()");
  *result = ffi::String(metadata_json_);
}

void ScheduledModule::Plans(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "plans()");
  *result = ffi::String(plans_json_);
}

void ScheduledModule::Parameters(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "parameters()");
  *result = ffi::String(parameters_->Describe());
}

}  // namespace tvm_sched::runtime
