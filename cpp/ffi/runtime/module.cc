#include "ffi/runtime/module.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/json.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "ffi/runtime/errors.h"
#include "ffi/runtime/given_memory.h"
#include "ffi/runtime/parallel_loops.h"
#include "ffi/runtime/process.h"
#include "ffi/runtime/run_program.h"
#include "ffi/runtime/serialize.h"
#include "ffi/runtime/tensors.h"
#include "runtime/cuda/driver.h"
#include "runtime/machine.h"
#include "runtime/plan_reader.h"
#include "runtime/plan_template.h"
#include "runtime/processor.h"
#include "runtime/stages.h"
#include "runtime/throw.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
using ffi::Tensor;

namespace {

/// Before the name of a plan: the function that runs that plan, whichever others there are.
constexpr std::string_view kMainOfPlan = "tvm_sched.main:";

/// Inputs of kernels by the name of the function: tensors of parameters, null for all others.
using ParameterInputs = ffi::Map<ffi::String, ffi::Array<ffi::Optional<ffi::Tensor>>>;

/// The inputs of the functions that a plan for CPUs calls with parameters, all of which have
/// values.
ParameterInputs ParametersOfKernels(const Plan& plan, const ParameterStore& parameters) {
  ParameterInputs result;
  for (const Step& step : plan.steps) {
    if (step.kind != StepKind::kKernel) continue;
    ffi::Array<ffi::Optional<ffi::Tensor>> inputs;
    bool any = false;
    for (int buffer : step.inputs) {
      const Source& source = plan.buffers[buffer].source;
      const bool parameter = source.kind == SourceKind::kParameter;
      any |= parameter;
      inputs.push_back(
          parameter ? ffi::Optional<ffi::Tensor>(parameters.Get(plan.parameters[source.index].name))
                    : std::nullopt);
    }
    if (any) result.Set(step.function, std::move(inputs));
  }
  return result;
}

void ExpectArguments(const ffi::PackedArgs& args, int count, const char* signature) {
  if (args.size() == count) return;
  TVM_SCHED_THROW(TypeError) << signature << " takes " << count << " arguments, got "
                             << args.size();
}

std::vector<Tensor> TensorArguments(const ffi::PackedArgs& args) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < args.size(); ++i) {
    auto tensor = args[i].as<Tensor>();
    if (!tensor) {
      TVM_SCHED_THROW(TypeError) << "argument " << i << " of main is " << args[i].GetTypeKey()
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
  if (plan.open) return false;  // see BindSizes
  if (plan.arguments.size() != given.size()) return false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!plan.arguments[i].SameType(given[i])) return false;
  }
  return true;
}

/// What the metadata say of the model's results, the same for all plans: the positions of values;
/// nothing where they are the plan's outputs.
std::optional<std::vector<int>> ResultsIn(const JsonCursor& metadata, const PlanList& plans,
                                          std::size_t values) {
  const auto entries = metadata.OptionalField("plans");
  if (!entries || entries->Items().empty()) return std::nullopt;
  const auto listed = entries->Items().front().OptionalField("results");
  if (!listed) return std::nullopt;
  const Plan& first = *plans.front();
  std::vector<int> results;
  for (const JsonCursor& item : listed->Items()) {
    if (const auto argument = item.OptionalField("argument")) {
      results.push_back(argument->Index(first.arguments.size(), "arguments"));
    } else if (const auto value = item.OptionalField("value")) {
      results.push_back(value->Index(values, "values"));
    } else {
      const int output = item.Field("output").Index(first.outputs.size(), "outputs");
      results.push_back(static_cast<int>(first.arguments.size()) + output);
    }
  }
  return results;
}

/// One tensor, or a list of several.
void Return(const std::vector<Tensor>& tensors, ffi::Any* result) {
  if (tensors.size() == 1) {
    *result = tensors[0];
  } else {
    *result = ffi::Array<Tensor>(tensors.begin(), tensors.end());
  }
}

/// The run as a whole, and from the first copy to the last, and the same of kernels, if it is
/// known.
void NoteFirstRun(const LastRun& run, Clock::time_point began) {
  const Clock::time_point end = Clock::now();
  NoteStage({"first run", began, end});
  if (run.record.steps.empty() || run.scale != 1.0) return;
  const Clock::time_point issued = end - run.record.wall;
  for (const auto& [kind, name] : {std::pair{StepKind::kCopy, "copies of the first run"},
                                   std::pair{StepKind::kRead, "reads of the first run"},
                                   std::pair{StepKind::kKernel, "kernels of the first run"}}) {
    Nanoseconds first = Nanoseconds::max(), last{0};
    std::int64_t bytes = 0;
    for (std::size_t s = 0; s < run.plan->steps.size(); ++s) {
      const Step& step = run.plan->steps[s];
      if (step.kind != kind || (!run.skipped.empty() && run.skipped[s])) continue;
      first = std::min(first, run.record.steps[s].start);
      last = std::max(last, run.record.steps[s].end);
      if (kind == StepKind::kKernel) continue;
      const int moved = kind == StepKind::kCopy ? step.outputs[0] : step.inputs[0];
      bytes += run.plan->buffers[moved].spec.size().count;
    }
    if (first > last) continue;
    NoteStage({name, issued + first, issued + last, bytes});
  }
}

}  // namespace

ScheduledModule::ScheduledModule(std::string plans_json, std::string metadata_json,
                                 const ParameterStore::Embedded& embedded)
    : plans_json_(std::move(plans_json)),
      metadata_json_(std::move(metadata_json)),
      owner_(getpid()) {
  const StageTimer timer("artifact");
  for (Plan& plan : ReadPlans(plans_json_)) {
    plan.cores = Cores(0, plan.threads);
    plans_.push_back(std::make_shared<const Plan>(std::move(plan)));
  }
  if (!metadata_json_.empty()) {
    const JsonCursor about = JsonCursor::Parse(metadata_json_, "metadata");
    lacking_ = WhyNotHere(about);
    level_ = ChooseLevel(about);
  }
  segmented_ = !plans_.empty() && plans_.back()->later;
  skipped_.resize(plans_.size());
  prepared_.resize(plans_.size());
  parameters_ = std::make_unique<ParameterStore>(plans_, embedded);
  states_ = StateStore(plans_);
  if (!metadata_json_.empty()) {
    const JsonCursor about = JsonCursor::Parse(metadata_json_, "metadata");
    if (auto run = about.OptionalField("run"); run) SetOptions(ReadOptions(*run, options_));
    if (segmented_) program_ = ReadProgram(about.OptionalField("program"), plans_);
    if (!plans_.empty()) results_ = ResultsIn(about, plans_, program_.values);
  } else if (segmented_) {
    program_ = ReadProgram(std::nullopt, plans_);
  }
  WantConnections();
}

void ScheduledModule::WantConnections() const {
  for (const auto& plan : plans_) {
    if (plan->backend != BackendKind::kCuda) continue;
    // A stream for each queue of a device's kernels, and for each queue of copies.
    std::map<int, int> streams;
    for (int device : plan->queue_devices) ++streams[device];
    int most = 0;
    for (const auto& [device, count] : streams) {
      if (device >= 0) most = std::max(most, count);
    }
    cuda::WantConnections((most + streams[-1]) * options_.instances);
  }
}

ffi::Module ScheduledModule::Make(const ffi::String& plans_json, const ffi::String& metadata_json,
                                  const ParameterStore::Embedded& embedded) {
  return TranslateErrors([&] {
    TakeParallelLoops();
    return ffi::Module(ffi::make_object<ScheduledModule>(plans_json, metadata_json, embedded));
  });
}

ffi::Module ScheduledModule::LoadFromBytes(const ffi::Bytes& bytes) {
  return TranslateErrors([&] {
    ModuleContent content = Deserialize(bytes);
    auto module = ffi::make_object<ScheduledModule>(
        std::move(content.plans_json), std::move(content.metadata_json), content.embedded);
    module->CheckProcessor();
    return ffi::Module(std::move(module));
  });
}

void ScheduledModule::CheckProcessor() const {
  if (!lacking_.empty()) TVM_SCHED_THROW(RuntimeError) << "the artifact cannot run: " << lacking_;
}

ffi::Bytes ScheduledModule::SaveToBytes() const {
  return TranslateErrors(
      [&] { return Serialize({plans_json_, metadata_json_, parameters_->embedded()}); });
}

const std::map<std::string, ScheduledModule::Method>& ScheduledModule::Methods() {
  static const std::map<std::string, Method> methods{
      {"main", &ScheduledModule::Main},
      {"tvm_sched.main", &ScheduledModule::Main},
      {"tvm_sched.results", &ScheduledModule::Results},
      {"run_times", &ScheduledModule::RunTimes},
      {"plan_of", &ScheduledModule::PlanOf},
      {"tvm_sched.copy", &ScheduledModule::Copy},
      {"load_parameters", &ScheduledModule::LoadParameters},
      {"set_parameter", &ScheduledModule::SetParameter},
      {"configure", &ScheduledModule::Configure},
      {"prepare", &ScheduledModule::Prepare},
      {"sleep", &ScheduledModule::Sleep},
      {"wake", &ScheduledModule::Wake},
      {"timeline", &ScheduledModule::Timeline},
      {"stages", &ScheduledModule::Stages},
      {"latency", &ScheduledModule::Latency},
      {"info", &ScheduledModule::Info},
      {"processor", &ScheduledModule::Processor},
      {"plans", &ScheduledModule::Plans},
      {"parameters", &ScheduledModule::Parameters},
      {"get_state", &ScheduledModule::GetState},
      {"set_state", &ScheduledModule::SetState},
      {"threads", &ScheduledModule::Threads},
      {"set_threads", &ScheduledModule::SetThreads},
  };
  return methods;
}

ffi::Optional<ffi::Function> ScheduledModule::GetFunction(const ffi::String& name) {
  // The function keeps the module alive.
  auto self = ffi::detail::ObjectUnsafe::ObjectPtrFromUnowned<ScheduledModule>(this);
  if (std::optional<int> plan = PlanOfFunction({name.data(), name.size()})) {
    return ffi::Function::FromPacked(
        [self, chosen = *plan](ffi::PackedArgs args, ffi::Any* result) {
          TranslateErrors([&] {
            self->LeaveParentBehind();
            self->RunPlan(chosen, args, result);
          });
        });
  }
  auto found = Methods().find(name);
  if (found == Methods().end()) return std::nullopt;
  return ffi::Function::FromPacked(
      [self, method = found->second](ffi::PackedArgs args, ffi::Any* result) {
        TranslateErrors([&] {
          self->LeaveParentBehind();
          if (OutsideTheLock(method)) {
            return (self.get()->*method)(args, result);
          }
          std::unique_lock lock(self->gate_->mutex);
          (self.get()->*method)(args, result);
        });
      });
}

bool ScheduledModule::OutsideTheLock(Method method) {
  return method == &ScheduledModule::Main || method == &ScheduledModule::Results ||
         method == &ScheduledModule::RunTimes || method == &ScheduledModule::Copy ||
         method == &ScheduledModule::Prepare || method == &ScheduledModule::Sleep ||
         method == &ScheduledModule::Wake || method == &ScheduledModule::GetState ||
         method == &ScheduledModule::SetState || method == &ScheduledModule::LoadParameters ||
         method == &ScheduledModule::SetParameter || method == &ScheduledModule::Configure;
}

std::optional<int> ScheduledModule::PlanOfFunction(std::string_view name) const {
  if (!name.starts_with(kMainOfPlan)) return std::nullopt;
  name.remove_prefix(kMainOfPlan.size());
  for (std::size_t p = 0; p < plans_.size(); ++p) {
    const bool later = plans_[p]->later;  // it takes what the segments before it computed
    if (plans_[p]->name == name && !later) return static_cast<int>(p);
  }
  return std::nullopt;
}

void ScheduledModule::LeaveParentBehind() {
  if (owner_ == getpid()) return;
  static_cast<void>(gate_.release());
  gate_ = std::make_unique<Gate>();
  busy_.assign(instances_.size(), false);
  owner_ = getpid();
}

/// An instance for the time of a run.
class ScheduledModule::Lease {
 public:
  explicit Lease(ScheduledModule& module) : module_(module), index_(module.Acquire()) {}
  ~Lease() {
    {
      std::lock_guard lock(module_.gate_->mutex);
      module_.busy_[index_] = false;
    }
    module_.gate_->freed.notify_one();
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Instance& instance() const { return *module_.instances_[index_]; }

 private:
  ScheduledModule& module_;
  int index_;
};

ffi::Any ScheduledModule::AloneWithStates(const std::function<ffi::Any()>& work) {
  const Lease lease(*this);
  const std::lock_guard lock(gate_->mutex);
  return work();
}

void ScheduledModule::Main(ffi::PackedArgs args, ffi::Any* result) {
  std::vector<Tensor> arguments = TensorArguments(args);
  const Chosen chosen = Choose(arguments, plans_);
  Run(chosen, std::move(arguments), result);
}

void ScheduledModule::RunPlan(int plan, ffi::PackedArgs args, ffi::Any* result) {
  std::vector<Tensor> arguments = TensorArguments(args);
  Chosen chosen = Choose(arguments, {plans_[plan]});
  chosen.index = plan;
  Run(chosen, std::move(arguments), result);
}

void ScheduledModule::RunTimes(ffi::PackedArgs args, ffi::Any* result) {
  std::vector<Tensor> arguments = TensorArguments(args);
  const Chosen chosen = Choose(arguments, plans_);
  Execute(chosen, std::move(arguments), /*times_only=*/true);
  const std::lock_guard lock(gate_->mutex);  // another thread's run may end
  Latency(ffi::PackedArgs(nullptr, 0), result);
}

void ScheduledModule::Run(const Chosen& chosen, std::vector<Tensor> arguments, ffi::Any* result) {
  const std::size_t count = arguments.size();
  std::vector<Tensor> values = Execute(chosen, std::move(arguments), /*times_only=*/false);
  if (segmented_) return Return(ResultsOf(values, count), result);
  values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
  Return(values, result);
}

void ScheduledModule::Results(ffi::PackedArgs args, ffi::Any* result) {
  std::vector<Tensor> arguments = TensorArguments(args);
  const std::size_t count = arguments.size();
  const Chosen chosen = Choose(arguments, plans_);
  Return(ResultsOf(Execute(chosen, std::move(arguments), /*times_only=*/false), count), result);
}

std::vector<Tensor> ScheduledModule::ResultsOf(const std::vector<Tensor>& values,
                                               std::size_t arguments) {
  if (!results_) return {values.begin() + static_cast<std::ptrdiff_t>(arguments), values.end()};
  std::vector<Tensor> tensors;
  // By memory, not by index: a branch or a loop may give what it takes.
  std::set<const void*> taken;
  for (std::size_t k = 0; k < arguments; ++k) taken.insert(values[k].data_ptr());
  for (const int index : *results_) {
    const Tensor& value = values[index];
    if (!value.defined()) {
      TVM_SCHED_THROW(RuntimeError) << "the artifact is damaged: nothing that has run writes value "
                                    << index << ", which is a result";
    }
    tensors.push_back(taken.insert(value.data_ptr()).second ? value : OwnCopy(value));
  }
  return tensors;
}

std::vector<Tensor> ScheduledModule::Execute(const Chosen& first, std::vector<Tensor> arguments,
                                             bool times_only) {
  CheckProcessor();  // also for what this process compiled, for another machine
  RunUnderWay under_way;
  Lease lease(*this);  // of all segments: nobody changes parameters between them
  std::vector<LastRun> runs;
  std::vector<Tensor> values = arguments;
  for (Tensor& output :
       RunSegment(first, std::move(arguments), times_only, lease.instance(), &runs)) {
    values.push_back(std::move(output));
  }
  if (segmented_) {
    RunProgram(program_, plans_, &values, [&](int index, std::vector<Tensor> taken) {
      Chosen chosen = Choose(taken, {plans_[index]});
      chosen.index = index;
      return RunSegment(chosen, std::move(taken), times_only, lease.instance(), &runs);
    });
  }
  const std::lock_guard lock(gate_->mutex);
  last_runs_ = std::move(runs);
  return values;
}

std::vector<Tensor> ScheduledModule::RunSegment(const Chosen& chosen, std::vector<Tensor> arguments,
                                                bool times_only, Instance& instance,
                                                std::vector<LastRun>* runs) {
  std::unique_lock lock(gate_->mutex);
  if (options_.times_only && !times_only) {
    TVM_SCHED_THROW(RuntimeError)
        << "the devices are emulated and only times are asked for (the option times_only), so that "
           "there are no outputs: call run_times, or set times_only to false";
  }
  CheckAwake();
  Request request = RequestFor(chosen);
  request.arguments = std::move(arguments);
  request.options.times_only = times_only;
  const Clock::time_point began = Clock::now();
  const bool first = !std::exchange(ran_, true);
  last_runs_.clear();
  instance.Prepare(request, elsewhere_, *parameters_,
                   [this](const std::string& name) { return FindKernel(name); });
  PrepareKernels(static_cast<std::size_t>(chosen.index));
  request.parameters_version = parameters_->version();  // Require may have loaded a file
  lock.unlock();
  std::vector<Tensor> outputs;
  LastRun last = instance.Run(std::move(request), &outputs);
  lock.lock();
  if (first) NoteFirstRun(last, began);
  if (last.traced || runs->empty()) {
    runs->push_back(std::move(last));
  } else {  // a loop may run a plan any number of times
    runs->front().record.latency += last.record.latency;
    runs->front().record.wall += last.record.wall;
  }
  return outputs;
}

std::shared_ptr<const Plan> ScheduledModule::PlanFor(const Chosen& chosen, bool keeps) {
  const Plan& plan = *plans_[chosen.index];
  if (!plan.open) return plans_[chosen.index];
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&chosen](const auto& each) { return each.first == chosen; });
  if (found != kept_.end()) {
    if (!keeps) return found->second;
    std::rotate(found, found + 1, kept_.end());
  } else {
    std::shared_ptr<const Plan> instance;
    try {
      instance = Instantiate(plan, chosen.sizes);
    } catch (const SizeError& error) {
      TVM_SCHED_THROW(ValueError) << error.what();
    }
    if (!keeps) return instance;
    if (const auto most = static_cast<std::size_t>(options_.kept_sizes); kept_.size() >= most) {
      kept_.erase(kept_.begin(), kept_.end() - static_cast<std::ptrdiff_t>(most - 1));
    }
    kept_.emplace_back(chosen, std::move(instance));
  }
  return kept_.back().second;
}

Request ScheduledModule::RequestFor(const Chosen& chosen) {
  const int plan = chosen.index;
  Request request;
  request.index = plan;
  request.plan = PlanFor(chosen, /*keeps=*/true);
  request.options = options_;
  if (plans_[plan]->backend == BackendKind::kCuda && options_.devices.empty()) {
    request.options.devices = DefaultGpus();
  }
  request.skipped_when_warm = skipped_[plan];
  request.parameters_version = parameters_->version();
  return request;
}

const std::vector<int>& ScheduledModule::DefaultGpus() {
  if (!default_gpus_) {
    default_gpus_.emplace();
    if (!metadata_json_.empty()) {
      const JsonCursor about = JsonCursor::Parse(metadata_json_, "metadata");
      if (NeedsGpus(about)) default_gpus_ = GpusFor(about, ThisMachine(/*with_gpus=*/true).gpus);
    }
  }
  return *default_gpus_;
}

int ScheduledModule::Acquire() {
  std::unique_lock lock(gate_->mutex);
  while (true) {
    const auto allowed = static_cast<std::size_t>(options_.instances);
    for (std::size_t i = 0; i < std::min(instances_.size(), allowed); ++i) {
      if (busy_[i]) continue;
      busy_[i] = true;
      return static_cast<int>(i);
    }
    if (instances_.size() < allowed) {
      instances_.push_back(std::make_unique<Instance>(plans_, turns_, states_));
      busy_.push_back(true);
      return static_cast<int>(instances_.size()) - 1;
    }
    if (gate_->freed.wait_for(lock, std::chrono::milliseconds(20)) == std::cv_status::timeout) {
      lock.unlock();
      Poll();
      lock.lock();
    }
  }
}

void ScheduledModule::PlanOf(ffi::PackedArgs args, ffi::Any* result) {
  // A server asks for the sizes of each request, and runs the sizes of several together.
  const Chosen chosen = Choose(TensorArguments(args), plans_);
  *result = ffi::String(PlanFor(chosen, /*keeps=*/false)->name);
}

void ScheduledModule::Copy(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 1, "copy(tensor)");
  *result = OwnCopy(args[0].cast<Tensor>());
}

Tensor ScheduledModule::OwnCopy(const Tensor& tensor) {
  if (!OnGpu(tensor)) return CopyOf(tensor, "the result");
  std::unique_lock lock(gate_->mutex);
  for (const std::unique_ptr<Instance>& instance : instances_) {
    if (!instance->devices()) continue;
    const std::shared_ptr<const cuda::Devices> devices = instance->devices();
    lock.unlock();
    return CopyOnGpu(tensor, *devices);
  }
  TVM_SCHED_THROW(ValueError) << "the result is on a GPU, and the plan has run on none";
}

Chosen ScheduledModule::Choose(const std::vector<Tensor>& arguments, const PlanList& plans) {
  std::vector<TensorSpec> given;
  for (const Tensor& tensor : arguments) given.push_back(SpecOf(tensor));
  // Later segments follow the others, which are chosen among.
  const bool later = plans.front()->later;
  for (std::size_t p = 0; p < plans.size(); ++p) {
    if (plans[p]->later == later && Takes(*plans[p], given)) {
      return {static_cast<int>(p), {}};
    }
  }
  std::optional<Chosen> chosen;  // the first template meant for the sizes, else the last one
  for (std::size_t p = 0; p < plans.size(); ++p) {
    if (!plans[p]->open || plans[p]->later != later) continue;
    try {
      chosen = {static_cast<int>(p), chosen ? chosen->sizes : BindSizes(*plans[p], given)};
    } catch (const SizeError& error) {
      TVM_SCHED_THROW(ValueError) << error.what();
    }
    if (IsAnchorOf(*plans[p], chosen->sizes)) break;
  }
  if (chosen) return *chosen;
  std::string known;
  for (const auto& plan : plans) {
    known += "\n  plan \"" + plan->name + "\": " + Signature(plan->arguments);
  }
  TVM_SCHED_THROW(ValueError) << "no plan of this module takes arguments " << Signature(given)
                              << "; it has" << known;
}

std::optional<ffi::Function> ScheduledModule::FindKernel(const std::string& name) const {
  const std::string own = name + level_.suffix;
  for (const std::string& each : {own, name}) {  // a kernel of the level, or what all levels share
    for (const ffi::Any& import : imports()) {
      auto module = import.cast<ffi::Module>();
      if (auto function = module->GetFunction(each, /*query_imports=*/true)) return *function;
    }
  }
  return ffi::Function::GetGlobal(name);
}

// ---- functions beside the runs: parameters, states, options, and what the module says of itself

void ScheduledModule::LoadParameters(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 1, "load_parameters(path)");
  const std::unique_lock lock = LockForChange();
  *result = parameters_->Load(args[0].cast<ffi::String>());
  parameters_->Read();
  AnnounceParameters();
}

void ScheduledModule::SetParameter(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 2, "set_parameter(name, tensor)");
  const std::unique_lock lock = LockForChange();
  parameters_->Set(args[0].cast<ffi::String>(), args[1].cast<Tensor>());
  AnnounceParameters();
}

void ScheduledModule::GetState(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 1, "get_state(name)");
  *result = AloneWithStates([&] { return states_.Get(args[0].cast<ffi::String>()); });
}

void ScheduledModule::SetState(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 2, "set_state(name, tensor)");
  AloneWithStates([&] {
    states_.Set(args[0].cast<ffi::String>(), args[1].cast<Tensor>());
    return true;
  });
}

void ScheduledModule::AnnounceParameters() const { CallImports("tvm_sched.parameters_changed"); }

void ScheduledModule::CallImports(const char* function) const {
  for (const ffi::Any& import : imports()) {
    auto module = import.cast<ffi::Module>();
    if (auto found = module->GetFunction(function)) (*found)();
  }
}

std::unique_lock<std::mutex> ScheduledModule::LockBetweenRuns() {
  std::unique_lock lock(gate_->mutex);
  while (std::find(busy_.begin(), busy_.end(), true) != busy_.end()) {
    if (gate_->freed.wait_for(lock, std::chrono::milliseconds(20)) != std::cv_status::timeout) {
      continue;
    }
    lock.unlock();
    Poll();
    lock.lock();
  }
  return lock;
}

std::unique_lock<std::mutex> ScheduledModule::LockForChange() {
  return segmented_ ? LockBetweenRuns() : std::unique_lock(gate_->mutex);
}

void ScheduledModule::CheckAwake() const {
  if (asleep_) TVM_SCHED_THROW(RuntimeError) << "the module sleeps: call wake() before a run";
}

void ScheduledModule::Sleep(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "sleep()");
  const std::unique_lock lock = LockBetweenRuns();
  std::int64_t freed = 0;
  for (const std::unique_ptr<Instance>& instance : instances_) freed += instance->Sleep().count;
  CallImports("tvm_sched.release_parameters");
  freed += parameters_->Unload().count;
  asleep_ = true;
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  *result = freed;
}

void ScheduledModule::Wake(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 0, "wake()");
  {
    const std::unique_lock lock = LockBetweenRuns();
    if (!asleep_) return;
    parameters_->Reload();
    parameters_->Read();
    AnnounceParameters();
    asleep_ = false;
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) PrepareKernels(plan);
  }
  PrepareGpus();
}

void ScheduledModule::Prepare(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 0, "prepare()");
  CheckProcessor();
  {
    const std::lock_guard lock(gate_->mutex);
    CheckAwake();
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) PrepareKernels(plan);
  }
  PrepareGpus();
}

void ScheduledModule::PrepareGpus() {
  if (plans_.front()->backend != BackendKind::kCuda) return;
  Lease lease(*this);
  const std::lock_guard lock(gate_->mutex);
  if (!parameters_->Complete(*plans_.front())) return;
  try {
    lease.instance().PrepareOnGpus(RequestFor({0, {}}), elsewhere_, *parameters_,
                                   [this](const std::string& name) { return FindKernel(name); });
  } catch (const std::exception&) {
    // There may be no such GPU, or another one is named before the first run.
  }
}

void ScheduledModule::PrepareKernels(std::size_t plan) {
  const bool known = prepared_[plan] == parameters_->version();
  if (known || plans_[plan]->backend != BackendKind::kCpu) return;
  // Kernels lay out what is not yet laid out when they first run: to do so now would mean to wait
  // for the whole file.
  if (plans_[plan]->ReadsFile()) return;
  if (!parameters_->Complete(*plans_[plan])) return;
  const StageTimer timer("prepare kernels");
  const ParameterInputs inputs = ParametersOfKernels(*plans_[plan], *parameters_);
  for (const ffi::Any& import : imports()) {
    auto module = import.cast<ffi::Module>();
    if (auto function = module->GetFunction("tvm_sched.prepare")) (*function)(inputs);
  }
  prepared_[plan] = parameters_->version();
}

void ScheduledModule::Threads(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "threads()");
  *result = plans_.front()->cores;
}

void ScheduledModule::SetThreads(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 1, "set_threads(count)");
  const int count = args[0].cast<int>();
  if (ran_) {
    TVM_SCHED_THROW(ValueError) << "set_threads(" << count
                                << "): the module has run; threads can be set before its first run";
  }
  instances_.clear();  // they may have been prepared
  busy_.clear();
  for (std::shared_ptr<const Plan>& plan : plans_) {
    Plan changed = *plan;
    changed.cores = Cores(count, plan->threads);
    plan = std::make_shared<const Plan>(std::move(changed));
  }
  kept_.clear();
  for (const ffi::Any& import : imports()) {
    auto module = import.cast<ffi::Module>();
    if (auto function = module->GetFunction("tvm_sched.set_threads")) (*function)(count);
  }
  prepared_.assign(plans_.size(), 0);
}

void ScheduledModule::Configure(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 1, "configure(options_json)");
  const std::unique_lock lock = LockForChange();
  SetOptions(ReadOptions(JsonCursor::Parse(args[0].cast<ffi::String>(), "options"), options_));
}

void ScheduledModule::SetOptions(RunOptions options) {
  if (const auto* names = std::get_if<std::vector<std::string>>(&options.resident)) {
    for (const std::string& name : *names) {
      if (!parameters_->Has(name)) {
        TVM_SCHED_THROW(ValueError) << "options.resident: there is no parameter \"" << name << "\"";
      }
    }
  }
  const bool emulated = std::any_of(plans_.begin(), plans_.end(), [](const auto& plan) {
    return plan->backend == BackendKind::kEmulated;
  });
  if (options.times_only && !emulated) {
    TVM_SCHED_THROW(ValueError)
        << "options.times_only is set, which is for emulated devices; these "
           "are real, and take their times by computing";
  }
  if (options.graph && options.in_turn) {
    TVM_SCHED_THROW(ValueError)
        << "options.graph and options.in_turn are set: a captured graph waits "
           "for no other run, so that one of them is allowed";
  }
  if (options.instances > 1 && !states_.empty()) {
    TVM_SCHED_THROW(ValueError)
        << "options.instances is " << options.instances
        << ", and the model has states: each run goes on from the one before it, so 1 is allowed";
  }
  // Plans of states follow each other, as prompts and decode steps do: none loads what another has.
  const bool shared =
      options.in_turn || (plans_.size() > 1 && !states_.empty() &&
                          std::all_of(plans_.begin(), plans_.end(), [](const auto& plan) {
                            return plan->backend == BackendKind::kCuda;
                          }));
  std::vector<std::vector<bool>> skipped;
  Instance::Elsewhere elsewhere;
  for (const auto& plan : plans_) {
    skipped.push_back(StepsSkippedWhenWarm(*plan, options.resident));
    if (shared) elsewhere.push_back(BroughtBy(*plan, skipped.back()));
  }
  elsewhere_ = std::move(elsewhere);
  options_ = std::move(options);
  skipped_ = std::move(skipped);
  WantConnections();
}

void ScheduledModule::Timeline(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "timeline()");
  if (last_runs_.empty() || !last_runs_.front().traced) {
    TVM_SCHED_THROW(RuntimeError) << "no run was traced: call configure('{\"trace\": true}'), then "
                                     "main, then timeline()";
  }
  *result = WriteTimeline(last_runs_);
}

void ScheduledModule::Stages(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "stages()");
  *result = WriteStages();
}

void ScheduledModule::Latency(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "latency()");
  if (last_runs_.empty()) {
    TVM_SCHED_THROW(RuntimeError) << "nothing has run, or the last run failed: call main first";
  }
  Nanoseconds latency{0};
  for (const LastRun& run : last_runs_) latency += run.record.latency;
  *result = static_cast<std::int64_t>(latency.count());
}

void ScheduledModule::Info(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "info()");
  *result = ffi::String(metadata_json_);
}

void ScheduledModule::Processor(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "processor()");
  *result = ffi::String(level_.name);
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
