#include "ffi/runtime/given_memory.h"

#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <utility>

#include "ffi/runtime/tensors.h"
#include "runtime/throw.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
using cuda::kHostMemory;
using ffi::Tensor;

namespace {

int GpuOf(const Tensor& tensor) { return OnGpu(tensor) ? tensor.device().device_id : kHostMemory; }

Source Argument(std::size_t index) { return {SourceKind::kArgument, static_cast<int>(index), {}}; }
Source Output(std::size_t index) { return {SourceKind::kOutput, static_cast<int>(index), {}}; }

}  // namespace

Tensor AllocateOnGpu(const TensorSpec& spec, int gpu, const cuda::Devices& devices) {
  const DLDevice device{kDLCUDA, gpu};
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() != nullptr) {
    return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc,
                                ffi::ShapeView(spec.shape.data(), spec.shape.size()), spec.dtype,
                                device);
  }
  const std::shared_ptr<std::byte> memory = devices.AllocateOnGpu(gpu, spec.size());
  return ViewTensor(spec, memory, memory.get(), device);
}

Tensor CopyOnGpu(const Tensor& tensor, const cuda::Devices& devices) {
  const int gpu = GpuOf(tensor);
  if (!devices.Uses(gpu) || !tensor.IsContiguous()) {
    TVM_SCHED_THROW(ValueError) << "a tensor on GPU " << gpu
                                << " cannot be copied: it is strided, or none of the plan's "
                                   "devices is that GPU";
  }
  const cuda::ContextGuard guard;
  const TensorSpec spec = SpecOf(tensor);
  const Tensor copy = AllocateOnGpu(spec, gpu, devices);
  if (spec.size().count == 0) return copy;
  devices.EnterGpu(gpu);
  const auto stream = static_cast<cuda::Stream>(TVMFFIEnvGetStream(kDLCUDA, gpu));
  cuda::Check(cuda::Driver().CopyAsync(reinterpret_cast<cuda::DevicePointer>(DataOf(copy)),
                                       reinterpret_cast<cuda::DevicePointer>(DataOf(tensor)),
                                       static_cast<std::size_t>(spec.size().count), stream),
              "the copy of an argument was refused");
  cuda::Check(cuda::Driver().StreamSynchronize(stream), "the copy of an argument failed");
  return copy;
}

GivenMemory::GivenMemory(std::shared_ptr<const Plan> plan,
                         std::shared_ptr<const cuda::Devices> devices)
    : plan_(std::move(plan)), devices_(std::move(devices)) {
  std::vector<int> gpus;
  for (int d = 0; d < devices_->count(); ++d) gpus.push_back(devices_->Gpu(d));
  const cuda::StepRoutes routes = cuda::MakeStepRoutes(*plan_, gpus);
  for (const cuda::StepRoute& route : routes.steps) {
    device_of_step_.push_back(routes.streams[route.stream].device);
  }
}

Places GivenMemory::Place(const Tensors& arguments) const {
  const auto first = std::find_if(arguments.begin(), arguments.end(), OnGpu);
  if (first == arguments.end()) return {};
  Places places;
  places.caller = GpuOf(*first);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const int gpu = GpuOf(arguments[i]);
    if (gpu != kHostMemory && !devices_->Uses(gpu)) {
      std::string own;
      for (int d = 0; d < devices_->count(); ++d) {
        own += (d == 0 ? "" : ", ") + std::to_string(devices_->Gpu(d));
      }
      TVM_SCHED_THROW(ValueError) << "argument " << i << " is on GPU " << gpu
                                  << ", and the plan's devices are the GPUs " << own
                                  << ": move it to one of these or to the host, or name other GPUs "
                                     "by configure(devices=[...])";
    }
    const bool reached = gpu != kHostMemory && AllReach(SourceKind::kArgument, i, gpu);
    places.arguments.push_back(reached ? gpu : kHostMemory);
  }
  for (std::size_t i = 0; i < plan_->outputs.size(); ++i) {
    const bool reached = AllReach(SourceKind::kOutput, static_cast<int>(i), places.caller);
    places.outputs.push_back(reached ? places.caller : kHostMemory);
  }
  return places;
}

bool GivenMemory::AllReach(SourceKind kind, int index, int gpu) const {
  for (std::size_t s = 0; s < plan_->steps.size(); ++s) {
    const int own = devices_->Gpu(device_of_step_[s]);
    if (devices_->Joined(own, gpu)) continue;
    for (const auto* list : {&plan_->steps[s].inputs, &plan_->steps[s].outputs}) {
      for (int buffer : *list) {
        const Source& source = plan_->buffers[buffer].source;
        if (source.kind == kind && source.index == index) return false;
      }
    }
  }
  return true;
}

int GivenMemory::DeviceOf(const Source& source) const {
  for (std::size_t s = 0; s < plan_->steps.size(); ++s) {
    for (const auto* list : {&plan_->steps[s].inputs, &plan_->steps[s].outputs}) {
      for (int buffer : *list) {
        const Source& other = plan_->buffers[buffer].source;
        if (other.kind == source.kind && other.index == source.index) return device_of_step_[s];
      }
    }
  }
  return 0;
}

Bytes GivenMemory::SizeOf(const Source& source) const {
  const auto& list = source.kind == SourceKind::kArgument ? plan_->arguments : plan_->outputs;
  return list[source.index].size();
}

std::byte* GivenMemory::At(const Source& source, const Places& places) {
  const int place = places.Of(source);
  auto& memory = memory_[{source.kind, source.index, place}];
  if (!memory) {
    const Bytes size = SizeOf(source);
    memory = place == kHostMemory ? devices_->AllocateHost(size, DeviceOf(source))
                                  : devices_->AllocateOnGpu(place, size);
  }
  return memory.get();
}

std::shared_ptr<std::byte> GivenMemory::TakeFromPool(std::size_t output) {
  // More are held only by callers that keep outputs: the rest of theirs is new each time.
  constexpr std::size_t kMost = 4;
  pool_.resize(plan_->outputs.size());
  auto& pool = pool_[output];
  for (const std::shared_ptr<std::byte>& memory : pool) {
    if (memory.use_count() > 1) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // after the last use by its holder
    return memory;
  }
  const auto size =
      static_cast<std::size_t>(std::max<std::int64_t>(plan_->outputs[output].size().count, 1));
  constexpr std::align_val_t kAligned{kAlignment};
  std::shared_ptr<std::byte> memory(
      static_cast<std::byte*>(::operator new(size, kAligned)),
      [](std::byte* data) { ::operator delete(data, std::align_val_t{kAlignment}); });
  if (pool.size() < kMost) pool.push_back(memory);
  return memory;
}

std::shared_ptr<std::byte> GivenMemory::TakePinned(std::size_t output) {
  // Beyond these, runs write into the first one, which no caller gets, and outputs are copied.
  constexpr std::size_t kMost = 4;
  pinned_pool_.resize(plan_->outputs.size());
  auto& pool = pinned_pool_[output];
  auto& written = memory_[{SourceKind::kOutput, static_cast<int>(output), kHostMemory}];
  const Bytes size = plan_->outputs[output].size();
  const int near = DeviceOf(Output(output));
  if (pool.empty()) pool.push_back(written ? written : devices_->AllocateHost(size, near));
  written = pool.front();
  for (std::size_t k = 1; k <= kMost; ++k) {
    if (k == pool.size()) pool.push_back(devices_->AllocateHost(size, near));
    if (pool[k].use_count() > 1) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // after the last use by its holder
    return written = pool[k];
  }
  return nullptr;
}

GivenMemory::Tensors GivenMemory::Allocate(const Places& places, bool pinned) {
  Tensors outputs;
  for (std::size_t i = 0; i < plan_->outputs.size(); ++i) {
    const TensorSpec& spec = plan_->outputs[i];
    if (places.caller != kHostMemory) {
      outputs.push_back(AllocateOnGpu(spec, places.caller, *devices_));
      continue;
    }
    std::shared_ptr<std::byte> memory = pinned ? TakePinned(i) : nullptr;
    if (!memory) memory = TakeFromPool(i);
    outputs.push_back(ViewTensor(spec, memory, memory.get()));
  }
  return outputs;
}

void GivenMemory::Fill(const Tensors& arguments, const Places& places) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (OnGpu(arguments[i])) continue;
    cuda::CopyOnHost(At(Argument(i), places), DataOf(arguments[i]), SizeOf(Argument(i)));
  }
}

std::vector<cuda::Exchange> GivenMemory::Exchanges(const Tensors& arguments, const Tensors& outputs,
                                                   const Places& places) {
  std::vector<cuda::Exchange> exchanges;
  const auto of = [&](int gpu) -> cuda::Exchange& {
    for (cuda::Exchange& exchange : exchanges) {
      if (exchange.gpu == gpu) return exchange;
    }
    const auto stream = static_cast<cuda::Stream>(TVMFFIEnvGetStream(kDLCUDA, gpu));
    return exchanges.emplace_back(cuda::Exchange{gpu, stream, {}, {}});
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!OnGpu(arguments[i])) continue;
    of(GpuOf(arguments[i]))
        .arriving.push_back({At(Argument(i), places), DataOf(arguments[i]), SizeOf(Argument(i))});
  }
  for (std::size_t i = 0; i < outputs.size() && places.caller != kHostMemory; ++i) {
    of(places.caller)
        .leaving.push_back({DataOf(outputs[i]), At(Output(i), places), SizeOf(Output(i))});
  }
  return exchanges;
}

void GivenMemory::Collect(const Tensors& outputs, const Places& places) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (OnGpu(outputs[i])) continue;
    std::byte* written = At(Output(i), places);
    if (DataOf(outputs[i]) == written) continue;
    cuda::CopyOnHost(DataOf(outputs[i]), written, SizeOf(Output(i)));
  }
}

}  // namespace tvm_sched::runtime
