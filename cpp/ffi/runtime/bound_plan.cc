#include "ffi/runtime/bound_plan.h"

#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ffi/runtime/tensors.h"
#include "runtime/residency.h"
#include "runtime/throw.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
using ffi::Tensor;

namespace {

/// While a kernel is called, a driver that checks the order of accesses knows what it touches.
class NotedTensors {
 public:
  NotedTensors(const ffi::AnyView* arguments, int count, int inputs) {
    if (!cuda::ChecksOrder()) return;
    std::vector<cuda::Access> accesses;
    for (int k = 0; k < count; ++k) {
      const auto tensor = arguments[k].cast<DLTensor*>();
      accesses.push_back({static_cast<const char*>(tensor->data) + tensor->byte_offset,
                          ffi::GetDataSize(*tensor), k >= inputs});
    }
    cuda::NoteKernelAccesses(accesses);
  }
  ~NotedTensors() { cuda::NoteKernelAccesses({}); }
  NotedTensors(const NotedTensors&) = delete;
  NotedTensors& operator=(const NotedTensors&) = delete;
};

}  // namespace

BoundPlan::BoundPlan(std::shared_ptr<const Plan> plan, const Arenas& arenas, const Lookup& lookup,
                     std::shared_ptr<const cuda::Devices> devices, std::vector<bool> elsewhere)
    : plan_(std::move(plan)), devices_(std::move(devices)), elsewhere_(std::move(elsewhere)) {
  BindArenas(arenas);
  if (devices_) given_ = std::make_unique<GivenMemory>(plan_, devices_);
  arguments_.resize(plan_->steps.size());
  bindings_.kernels.resize(plan_->steps.size());
  for (int step = 0; step < static_cast<int>(plan_->steps.size()); ++step) {
    if (plan_->steps[step].kind != StepKind::kKernel) continue;
    const std::string& name = plan_->steps[step].function;
    std::optional<ffi::Function> function = lookup(name);
    if (!function) {
      TVM_SCHED_THROW(RuntimeError)
          << plan_->DescribeStep(step) << " calls the function \"" << name
          << "\", which is neither in the imported kernel modules nor a global function";
    }
    BindKernel(step, *std::move(function));
    if (!devices_) continue;
    preparations_.resize(plan_->steps.size());
    warm_ups_.resize(plan_->steps.size());
    if (std::optional<ffi::Function> ready = lookup(kPrepareKernel + name)) {
      preparations_[step] = CallOf(step, *std::move(ready));
    }
    if (!InArenas(plan_->steps[step])) continue;
    if (std::optional<ffi::Function> warm_up = lookup(kWarmUpKernel + name)) {
      warm_ups_[step] = CallOf(step, *std::move(warm_up));
    }
  }
}

void BoundPlan::BindArenas(const Arenas& arenas) {
  tensors_.resize(plan_->buffers.size());
  bindings_.buffers.resize(plan_->buffers.size());
  const ArenaLayout moved = elsewhere_.empty() ? ArenaLayout{} : CloseGaps(*plan_, elsewhere_);
  for (std::size_t i = 0; i < plan_->buffers.size(); ++i) {
    const Buffer& buffer = plan_->buffers[i];
    if (!InArena(static_cast<int>(i))) continue;
    const auto& arena = arenas[buffer.source.index];
    const Bytes offset = elsewhere_.empty() ? buffer.source.offset : moved.offsets[i];
    bindings_.buffers[i] = arena.get() + offset.count;
    const DLDevice device =
        devices_ ? DLDevice{kDLCUDA, devices_->Gpu(buffer.source.index)} : DLDevice{kDLCPU, 0};
    tensors_[i] = ViewTensor(buffer.spec, arena, bindings_.buffers[i], device);
  }
}

bool BoundPlan::InArena(int buffer) const {
  const bool away = !elsewhere_.empty() && elsewhere_[buffer];
  return plan_->buffers[buffer].source.kind == SourceKind::kArena && !away;
}

bool BoundPlan::InArenas(const Step& step) const {
  const auto in_arena = [this](int buffer) { return InArena(buffer); };
  return std::all_of(step.inputs.begin(), step.inputs.end(), in_arena) &&
         std::all_of(step.outputs.begin(), step.outputs.end(), in_arena);
}

Tensor& BoundPlan::ViewFor(int buffer, int device) {
  if (!devices_) return tensors_[buffer];
  Tensor& view = views_[{buffer, devices_->Gpu(device)}];
  std::byte* memory = bindings_.buffers[buffer];
  if (!view.defined() || view.data_ptr() != memory) {
    view =
        ViewTensor(plan_->buffers[buffer].spec, nullptr, memory, {kDLCUDA, devices_->Gpu(device)});
  }
  return view;
}

void BoundPlan::BindKernel(int index, ffi::Function function) {
  const Step& step = plan_->steps[index];
  if (devices_ && step.calling == Calling::kPacked) {
    TVM_SCHED_THROW(RuntimeError) << plan_->DescribeStep(index) << " calls the function \""
                                  << step.function << "\" of the host, which cannot run on a GPU";
  }
  std::vector<int> buffers = step.inputs;
  if (step.calling == Calling::kDps) {
    buffers.insert(buffers.end(), step.outputs.begin(), step.outputs.end());
  }
  std::vector<ffi::AnyView>& arguments = arguments_[index];
  arguments.resize(buffers.size() + step.sizes.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (InArena(buffers[i])) {
      arguments[i] = tensors_[buffers[i]];
    } else {
      patches_.push_back(
          {&arguments[i], buffers[i], devices_ ? given_->device_of_step()[index] : 0});
    }
  }
  for (std::size_t i = 0; i < step.sizes.size(); ++i) {
    arguments[buffers.size() + i] = step.sizes[i];
  }
  if (step.calling == Calling::kPacked) {
    const ffi::AnyView* list = arguments.data();
    const auto count = static_cast<int>(arguments.size());
    bindings_.kernels[index] = [this, index, list, count, function = std::move(function)] {
      ffi::Any result;
      function.CallPacked(list, count, &result);
      StoreResults(index, result);
    };
  } else {
    bindings_.kernels[index] = CallOf(index, std::move(function));
  }
}

Kernel BoundPlan::CallOf(int step, ffi::Function function) const {
  const std::vector<ffi::AnyView>& arguments = arguments_[step];
  return [list = arguments.data(), count = static_cast<int>(arguments.size()),
          inputs = static_cast<int>(plan_->steps[step].inputs.size()),
          on_gpus = devices_ != nullptr, function = std::move(function)] {
    std::optional<NotedTensors> noted;
    if (on_gpus) noted.emplace(list, count, inputs);
    ffi::Any result;
    function.CallPacked(list, count, &result);
  };
}

void BoundPlan::StoreResults(int index, const ffi::Any& result) const {
  const std::vector<int>& outputs = plan_->steps[index].outputs;
  std::vector<Tensor> tensors;
  if (auto one = result.as<Tensor>()) {
    tensors.push_back(*one);
  } else if (auto several = result.try_cast<ffi::Array<Tensor>>()) {
    for (const Tensor& tensor : *several) tensors.push_back(tensor);
  } else {
    TVM_SCHED_THROW(TypeError) << "the function returned " << result.GetTypeKey()
                               << ", expected a tensor or a tuple of tensors";
  }
  if (tensors.size() != outputs.size()) {
    TVM_SCHED_THROW(ValueError) << "the function returned " << tensors.size()
                                << " tensors, expected " << outputs.size();
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const TensorSpec& wanted = plan_->buffers[outputs[k]].spec;
    const TensorSpec found = SpecOf(tensors[k]);
    if (!wanted.SameType(found)) {
      TVM_SCHED_THROW(ValueError) << "result " << k << " of the function is " << found.ToString()
                                  << ", expected " << wanted.ToString();
    }
    const Tensor compact = ReadyForKernel(tensors[k], "result " + std::to_string(k));
    const auto size = static_cast<std::size_t>(wanted.size().count);
    if (size > 0) std::memcpy(bindings_.buffers[outputs[k]], compact.data_ptr(), size);
  }
}

void BoundPlan::AttachParameters(ParameterStore& parameters) {
  if (attached_ == parameters.version()) return;
  if (devices_) {
    parameters.Pin(*devices_);
    pinned_.assign(plan_->buffers.size(), {});
  }
  for (std::size_t i = 0; i < plan_->buffers.size(); ++i) {
    const Source& source = plan_->buffers[i].source;
    if (source.kind != SourceKind::kParameter) continue;
    const std::string& name = plan_->parameters[source.index].name;
    if (devices_) {
      pinned_[i] = parameters.GetPinned(name);
      bindings_.buffers[i] = pinned_[i].data;
      continue;
    }
    tensors_[i] = parameters.Get(name);
    bindings_.buffers[i] = DataOf(tensors_[i]);
  }
  for (std::size_t step = 0; step < plan_->steps.size(); ++step) {
    if (plan_->steps[step].kind != StepKind::kRead) continue;
    const Source& source = plan_->buffers[plan_->steps[step].inputs[0]].source;
    bindings_.kernels[step] = parameters.Reading(plan_->parameters[source.index].name);
  }
  if (!elsewhere_.empty()) AttachElsewhere(parameters);
  attached_ = parameters.version();
}

void BoundPlan::AttachElsewhere(ParameterStore& parameters) {
  const std::vector<std::vector<int>> steps = StepsOfParameters(*plan_);
  for (std::size_t p = 0; p < steps.size(); ++p) {
    for (int step : steps[p]) {
      const int buffer = plan_->steps[step].outputs[0];
      if (!elsewhere_[buffer]) continue;
      const int device = plan_->buffers[buffer].source.index;
      held_[buffer] = parameters.GetOnGpu(plan_->parameters[p].name, *devices_, device);
      bindings_.buffers[buffer] = held_[buffer].get();
    }
  }
}

void BoundPlan::Attach(const std::vector<Tensor>& arguments, const std::vector<Tensor>& outputs,
                       const StateStore& states, const Places& places) {
  for (std::size_t i = 0; i < plan_->buffers.size(); ++i) {
    const Source& source = plan_->buffers[i].source;
    if (source.kind == SourceKind::kState || source.kind == SourceKind::kNextState) {
      bindings_.buffers[i] = states.At(*plan_, source);
      if (!devices_) {
        tensors_[i] = ViewTensor(plan_->buffers[i].spec, nullptr, bindings_.buffers[i]);
      }
      continue;
    }
    if (source.kind != SourceKind::kArgument && source.kind != SourceKind::kOutput) continue;
    if (devices_) {
      bindings_.buffers[i] = given_->At(source, places);
      continue;
    }
    const auto& list = source.kind == SourceKind::kArgument ? arguments : outputs;
    tensors_[i] = list[source.index];
    bindings_.buffers[i] = DataOf(tensors_[i]);
  }
  for (const Patch& patch : patches_) *patch.slot = ViewFor(patch.buffer, patch.device);
}

void BoundPlan::Detach() {
  for (std::size_t i = 0; i < plan_->buffers.size(); ++i) {
    const SourceKind kind = plan_->buffers[i].source.kind;
    if (kind == SourceKind::kArgument || kind == SourceKind::kOutput) tensors_[i] = Tensor();
  }
}

}  // namespace tvm_sched::runtime
