#include "kernels/cuda/call.h"

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/cuda/stream_ends.h"
#include "runtime/throw.h"

namespace tvm_sched::cuda_kernels {

using runtime::cuda::Check;
using runtime::cuda::Driver;

namespace {

thread_local const CallOnGpu* current_call = nullptr;

struct Workspace {
  std::shared_ptr<std::byte> memory;
  std::size_t size = 0;
};

/// By context and stream.
struct Workspaces {
  using Key = std::pair<runtime::cuda::Context, runtime::cuda::Stream>;
  std::mutex mutex;
  std::map<Key, Workspace> shared;

  void Forget(const Key& key) {
    const std::lock_guard lock(mutex);
    shared.erase(key);
  }
};

Workspaces& TheWorkspaces() {
  static auto* workspaces = new Workspaces;  // streams of static objects end late
  return *workspaces;
}

std::shared_ptr<std::byte> Allocate(std::size_t size, runtime::cuda::Context context,
                                    const std::string& name) {
  runtime::cuda::DevicePointer address = 0;
  Check(Driver().MemoryAllocate(&address, size),
        std::to_string(size) + " bytes of workspace for the kernel \"" + name + "\"");
  return {reinterpret_cast<std::byte*>(address), [context](std::byte* memory) {
            try {
              const runtime::cuda::ContextGuard guard;
              Driver().ContextSetCurrent(context);
              Driver().MemoryFree(reinterpret_cast<runtime::cuda::DevicePointer>(memory));
            } catch (const runtime::cuda::CudaError&) {
              // A forked child: the memory is the parent's.
            }
          }};
}

}  // namespace

CallOnGpu::CallOnGpu(const std::string& name, int count, const tvm::ffi::PackedArgs& args)
    : outer_(current_call) {
  if (args.size() != count) {
    TVM_SCHED_THROW(TypeError) << "the kernel \"" << name << "\" takes " << count
                               << " tensors, got " << args.size();
  }
  data.reserve(count);
  for (int i = 0; i < count; ++i) {
    const auto tensor = args[i].cast<DLTensor*>();
    if (tensor->device.device_type != kDLCUDA) {
      TVM_SCHED_THROW(ValueError) << "argument " << i << " of the kernel \"" << name
                                  << "\" is in the memory of no GPU";
    }
    if (i == 0) {
      gpu = tensor->device.device_id;
      stream =
          static_cast<runtime::cuda::Stream>(TVMFFIEnvGetStream(kDLCUDA, tensor->device.device_id));
    }
    data.push_back(static_cast<char*>(tensor->data) + tensor->byte_offset);
  }
  Check(Driver().ContextGetCurrent(&context), "asking for the context failed");
  current_call = this;
}

CallOnGpu::~CallOnGpu() { current_call = outer_; }

std::size_t LargestWorkspace() {
  // Of kernels that no plan calls, as where they are measured; a plan says itself what it allows.
  constexpr std::size_t kWithoutPlan = 32 << 20;
  if (current_call == nullptr) return kWithoutPlan;
  return runtime::cuda::PlannedWorkspace(current_call->stream).value_or(kWithoutPlan);
}

int CurrentGpu() { return current_call == nullptr ? 0 : current_call->gpu; }

std::shared_ptr<std::byte> AllocateWorkspace(std::size_t size, const std::string& name) {
  if (current_call == nullptr) {
    TVM_SCHED_THROW(RuntimeError) << "the kernel \"" << name << "\" needs memory outside of a call";
  }
  const Workspaces::Key key{current_call->context, current_call->stream};
  Workspaces& all = TheWorkspaces();
  const std::lock_guard lock(all.mutex);
  const bool first = all.shared.count(key) == 0;
  Workspace& mine = all.shared[key];
  if (first) {
    runtime::cuda::AtEndOfStream(key.second, [key] { TheWorkspaces().Forget(key); });
  }
  if (mine.size < size) {
    const auto planned = runtime::cuda::PlannedWorkspace(key.second);
    const std::size_t wanted = std::max(size, planned.value_or(2 * mine.size));
    mine = {Allocate(wanted, key.first, name), wanted};
  }
  return mine.memory;
}

}  // namespace tvm_sched::cuda_kernels
