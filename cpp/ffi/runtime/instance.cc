#include "ffi/runtime/instance.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "ffi/runtime/errors.h"
#include "ffi/runtime/process.h"
#include "ffi/runtime/tensors.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/emulated/emulated_backend.h"
#include "runtime/stages.h"
#include "runtime/throw.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
using ffi::Tensor;

namespace {

bool WantsValues(const Plan& plan, const RunOptions& options) {
  return plan.backend != BackendKind::kEmulated || !options.times_only;
}

/// TVM_SCHED_WARM_UP=0 leaves the first calls of libraries to the first run.
bool WarmsUp() {
  const char* given = std::getenv("TVM_SCHED_WARM_UP");
  return given == nullptr || std::string(given) != "0";
}

/// Arguments as kernels take them; with `gpus` those in a GPU's memory stay there.
void MakeReady(std::vector<Tensor>* arguments, bool gpus = false) {
  for (std::size_t i = 0; i < arguments->size(); ++i) {
    Tensor& argument = (*arguments)[i];
    const std::string what = "argument " + std::to_string(i);
    if (!gpus) {
      argument = ReadyForKernel(argument, what);
    } else if (!OnGpu(argument)) {
      // It is copied into pinned memory in any case, from wherever it begins.
      if (!argument.IsContiguous()) argument = ReadyForKernel(argument, what);
      CheckOnHost(argument, what);
    } else if (!argument.IsContiguous()) {
      TVM_SCHED_THROW(ValueError) << what
                                  << " is strided and lies on a GPU: make it contiguous first";
    }
  }
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

Instance::~Instance() {
  // What a failed run left on the streams is waited for.
  const WithoutPythonsLock unlocked;
  for (Runnable& runnable : runnables_) runnable.cuda.reset();
}

void Instance::Prepare(const Request& request, const Elsewhere& elsewhere,
                       ParameterStore& parameters, const BoundPlan::Lookup& lookup) {
  const std::shared_ptr<const Plan>& plan = request.plan;
  Runnable& runnable = runnables_[request.index];
  if (!runnable.executor) runnable.executor = std::make_unique<Executor>(plan);
  runnable.executor->Use(plan);
  if (!WantsValues(*plan, request.options)) return;
  parameters.Require(*plan);
  const bool on_gpus = plan->backend == BackendKind::kCuda;
  std::optional<cuda::ContextGuard> guard;
  if (on_gpus) guard.emplace();
  if (on_gpus) OpenDevices(*plan, request.options, elsewhere);
  TakeKept(request);
  if (!runnable.bound) {
    auto bound = std::make_shared<BoundPlan>(
        plan, Arenas(*plan), lookup, devices_,
        elsewhere_.empty() ? std::vector<bool>{} : elsewhere_[request.index]);
    if (plan != plans_[request.index]) runnable.kept.emplace_back(plan, bound);
    runnable.bound = std::move(bound);
  }
  runnable.bound->AttachParameters(parameters);
  states_.Place(*plan, devices_);
  if (!on_gpus) return;
  if (!runnable.cuda) {
    const StageTimer timer("streams");
    runnable.cuda = std::make_unique<CudaBackend>(plan, devices_);
  }
  runnable.cuda->UseParameters(&runnable.bound->pinned(), &runnable.bound->bindings().buffers);
  runnable.cuda->TakeTurns(request.options.in_turn ? turns_ : nullptr);
}

void Instance::TakeKept(const Request& request) {
  if (request.plan == plans_[request.index]) return;
  Runnable& runnable = runnables_[request.index];
  auto& kept = runnable.kept;
  const auto found = std::find_if(kept.begin(), kept.end(), [&request](const auto& each) {
    return each.first == request.plan;
  });
  runnable.bound = found == kept.end() ? nullptr : found->second;
  if (runnable.bound) {
    std::rotate(found, found + 1, kept.end());
  } else if (const auto most = static_cast<std::size_t>(request.options.kept_sizes);
             kept.size() >= most) {
    kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(most - 1));
  }
}

void Instance::PrepareOnGpus(const Request& request, const Elsewhere& elsewhere,
                             ParameterStore& parameters, const BoundPlan::Lookup& lookup) {
  const cuda::ContextGuard guard;
  Prepare(request, elsewhere, parameters, lookup);
  Runnable& runnable = runnables_[request.index];
  // Arguments and outputs get their pinned memory, too.
  Attachment attachment(*runnable.bound);
  runnable.bound->Attach({}, {}, states_);
  {
    const StageTimer timer("kernels");
    runnable.cuda->PrepareSteps(runnable.bound->preparations());
  }
  parameters.PinOthers();
  if (!WarmsUp()) return;
  // What libraries load and choose at a first call; other threads pin meanwhile.
  const StageTimer timer("warm-up");
  runnable.cuda->WarmUpSteps(runnable.bound->warm_ups());
}

void Instance::OpenDevices(const Plan& plan, const RunOptions& options,
                           const Elsewhere& elsewhere) {
  if (devices_ && options.devices == opened_ && elsewhere == elsewhere_) return;
  FreeMemory();
  devices_.reset();
  devices_ =
      std::make_shared<const cuda::Devices>(static_cast<int>(plan.devices.size()), options.devices);
  opened_ = options.devices;
  elsewhere_ = elsewhere;
}

void Instance::FreeMemory() {
  states_.Withdraw();
  captured_.clear();
  warm_.reset();
  for (Runnable& runnable : runnables_) {
    runnable.cuda.reset();
    runnable.bound.reset();
    runnable.kept.clear();
  }
  arenas_.clear();
  arena_sizes_.clear();
}

Bytes Instance::Sleep() {
  std::optional<cuda::ContextGuard> guard;
  if (devices_) guard.emplace();
  Bytes freed;
  for (Bytes size : arena_sizes_) freed.count += size.count;
  FreeMemory();
  return freed;
}

LastRun Instance::Run(Request request, std::vector<Tensor>* outputs) {
  const std::shared_ptr<const Plan>& plan = request.plan;
  const bool emulated = plan->backend == BackendKind::kEmulated;
  const bool values = WantsValues(*plan, request.options);
  Warm warm{plan, request.parameters_version, request.skipped_when_warm, values};
  LastRun last{plan, {}, {}, 1.0, request.options.trace};
  // A run that fails leaves the arenas in an unknown state, so the next one is cold.
  const bool repeated = std::exchange(warm_, std::nullopt) == warm;
  // What lies elsewhere is there from the start.
  if (repeated || !elsewhere_.empty()) last.skipped = request.skipped_when_warm;
  if (emulated) {
    last.scale = request.options.emulation_scale.value_or(ChooseScale(*plan));
    EmulatedBackend backend(last.scale);
    last.record = Execute(request, backend, {}, last.skipped);
  }
  if (plan->backend == BackendKind::kCuda) {
    last.record = RunOnGpus(request, last.skipped, warm, repeated, outputs);
  } else if (values) {
    for (const TensorSpec& spec : plan->outputs) outputs->push_back(AllocateTensor(spec));
    MakeReady(&request.arguments);
    BoundPlan& bound = *runnables_[request.index].bound;
    Attachment attachment(bound);
    bound.Attach(request.arguments, *outputs, states_);
    CpuBackend backend(plan);
    RunRecord real = Execute(request, backend, bound.bindings(), last.skipped);
    if (!emulated) last.record = std::move(real);
  }
  if (values) states_.Advance(*plan);
  warm_ = std::move(warm);
  return last;
}

RunRecord Instance::RunOnGpus(Request& request, const std::vector<bool>& skipped, const Warm& warm,
                              bool repeated, std::vector<Tensor>* outputs) {
  const cuda::ContextGuard guard;
  Runnable& runnable = runnables_[request.index];
  BoundPlan& bound = *runnable.bound;
  GivenMemory& given = bound.given();
  MakeReady(&request.arguments, /*gpus=*/true);
  const Places places = given.Place(request.arguments);
  *outputs = given.Allocate(places, request.options.pinned_outputs);
  Attachment attachment(bound);
  bound.Attach(request.arguments, *outputs, states_, places);
  given.Fill(request.arguments, places);
  runnable.cuda->Serve(given.Exchanges(request.arguments, *outputs, places));
  // The run before was of the same kind, so that kernels are loaded and parameters in their places.
  const bool graph = repeated && request.options.graph && !request.options.trace;
  RunRecord record = graph ? RunGraph(request, skipped, warm, places)
                           : Execute(request, *runnable.cuda, bound.bindings(), skipped);
  given.Collect(*outputs, places);
  return record;
}

RunRecord Instance::RunGraph(const Request& request, const std::vector<bool>& skipped,
                             const Warm& warm, const Places& places) {
  const Runnable& runnable = runnables_[request.index];
  const Captured& captured = CapturedLike(request, skipped, warm, places);
  return runnable.executor->Replay(*runnable.cuda, captured.launch, Settings(request, skipped));
}

const Instance::Captured& Instance::CapturedLike(const Request& request,
                                                 const std::vector<bool>& skipped, const Warm& warm,
                                                 const Places& places) {
  const Plan& plan = *request.plan;
  const Runnable& runnable = runnables_[request.index];
  std::vector<std::byte*> memory;
  for (std::size_t k = 0; k < plan.states.size(); ++k) {
    for (SourceKind kind : {SourceKind::kState, SourceKind::kNextState}) {
      memory.push_back(states_.At(plan, {kind, static_cast<int>(k), {}}));
    }
  }
  for (std::size_t k = 0; k < plan.outputs.size(); ++k) {
    const Source output{SourceKind::kOutput, static_cast<int>(k), {}};
    memory.push_back(runnable.bound->given().At(output, places));
  }
  // Those of other plans stay, so that runs of several plans may alternate.
  std::erase_if(captured_, [&](const Captured& one) {
    return one.of.plan == warm.plan && (one.of != warm || one.places != places);
  });
  for (const Captured& one : captured_) {
    if (one.of.plan == warm.plan && one.memory == memory) return one;
  }
  constexpr std::size_t kMost = 16;  // beyond them states were placed anew, and again
  if (captured_.size() == kMost) captured_.clear();
  try {
    captured_.push_back(
        {warm, places, std::move(memory),
         runnable.executor->Capture(*runnable.cuda, runnable.bound->bindings(), skipped)});
  } catch (const StepError& error) {
    RethrowStepError(plan, error);
  }
  return captured_.back();
}

const BoundPlan::Arenas& Instance::Arenas(const Plan& plan) {
  bool enough = !arenas_.empty();
  for (std::size_t d = 0; enough && d < plan.devices.size() && elsewhere_.empty(); ++d) {
    enough = plan.devices[d].arena <= arena_sizes_[d];
  }
  if (enough) return arenas_;
  const std::vector<Bytes> former = arena_sizes_;  // so that sizes may alternate without a change
  FreeMemory();  // of smaller sizes of a template, and what refers to it
  const StageTimer timer("memory");
  std::vector<Device> largest = plan.devices;
  if (!elsewhere_.empty()) {
    for (Device& device : largest) device.arena = {0};
  }
  for (std::size_t p = 0; p < plans_.size(); ++p) {
    const Plan& other = *plans_[p];
    const ArenaLayout moved = elsewhere_.empty() ? ArenaLayout{} : CloseGaps(other, elsewhere_[p]);
    for (std::size_t d = 0; d < other.devices.size(); ++d) {
      if (d == largest.size()) largest.push_back({other.devices[d].name, {0}});
      largest[d].arena =
          std::max(largest[d].arena, elsewhere_.empty() ? other.devices[d].arena : moved.sizes[d]);
    }
  }
  for (std::size_t d = 0; d < former.size(); ++d) {
    if (d == largest.size()) largest.push_back({{}, {0}});
    largest[d].arena = std::max(largest[d].arena, former[d]);
  }
  BoundPlan::Arenas arenas;
  CpuBackend cpu;
  for (std::size_t d = 0; d < largest.size(); ++d) {
    const Device& device = largest[d];
    const auto index = static_cast<int>(d);
    try {
      arenas.push_back(devices_ ? devices_->Allocate(index, device.arena)
                                : cpu.Allocate(index, device.arena));
    } catch (const cuda::CudaMemoryError& error) {
      TVM_SCHED_THROW(MemoryError)
          << "not enough memory for the " << device.arena.count
          << " bytes that the plan needs on device \"" << device.name << "\": " << error.what();
    } catch (const std::bad_alloc&) {
      TVM_SCHED_THROW(MemoryError) << "not enough memory for the " << device.arena.count
                                   << " bytes that the plan needs on device \"" << device.name
                                   << "\"; free memory, or schedule for smaller inputs";
    }
  }
  for (const Device& device : largest) arena_sizes_.push_back(device.arena);
  return arenas_ = std::move(arenas);
}

RunSettings Instance::Settings(const Request& request, const std::vector<bool>& skipped) {
  RunSettings settings;
  settings.poll = Poll;
  settings.skipped = skipped;
  settings.timed = request.options.trace;
  settings.watchdog = request.options.watchdog;
  settings.report = [](const std::string& text) {
    std::fprintf(stderr, "tvm_sched watchdog: %s\n", text.c_str());
  };
  return settings;
}

RunRecord Instance::Execute(const Request& request, Backend& backend, const Bindings& bindings,
                            const std::vector<bool>& skipped) {
  RunSettings settings = Settings(request, skipped);
  // Emulated devices need the times of their steps, for they have no other clock.
  settings.timed = settings.timed || bindings.kernels.empty();
  try {
    return runnables_[request.index].executor->Run(backend, bindings, settings);
  } catch (const StepError& error) {
    RethrowStepError(*request.plan, error);
  }
}

}  // namespace tvm_sched::runtime
