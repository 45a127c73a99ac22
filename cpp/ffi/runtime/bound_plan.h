// A plan with memory and kernels: what is made once, so that a run allocates outputs only.
#ifndef TVM_SCHED_FFI_RUNTIME_BOUND_PLAN_H_
#define TVM_SCHED_FFI_RUNTIME_BOUND_PLAN_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/runtime/given_memory.h"
#include "ffi/runtime/parameters.h"
#include "ffi/runtime/states.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/cuda/devices.h"
#include "runtime/executor.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// Before the name of a kernel's function: one with the same arguments that only makes ready what
/// the kernel's first launch on the current stream needs. Modules of kernels for GPUs have it.
inline constexpr const char* kPrepareKernel = "tvm_sched.prepare:";
/// Before the name of a kernel's function: one that does the same, to be called once before the
/// first run. Modules have it whose kernels choose an algorithm, or load it, at their first call.
inline constexpr const char* kWarmUpKernel = "tvm_sched.warm_up:";

class BoundPlan {
 public:
  using Lookup = std::function<std::optional<tvm::ffi::Function>(const std::string& name)>;

  using Arenas = std::vector<std::shared_ptr<std::byte>>;

  /// Lay the buffers into the arenas (one a device) and look up the kernels. Throws ffi::Error
  /// (RuntimeError) where a function is not there; the message names it and the operator.
  ///
  /// With `devices`, kernels run on GPUs: arguments and outputs lie as GivenMemory says, parameters
  /// in pinned host memory, whose addresses stay. Parameters that come into the buffers `elsewhere`
  /// (by buffer, or empty) are not in the arenas, which CloseGaps has laid out: they lie on the
  /// GPUs once for all that bind them.
  BoundPlan(std::shared_ptr<const Plan> plan, const Arenas& arenas, const Lookup& lookup,
            std::shared_ptr<const cuda::Devices> devices = nullptr,
            std::vector<bool> elsewhere = {});

  /// Put the parameters' values in their places.
  void AttachParameters(ParameterStore& parameters);
  /// Put one run's tensors in their places; on GPUs those of `places`, which `given` fills. States
  /// lie where they were placed for this plan.
  void Attach(const std::vector<tvm::ffi::Tensor>& arguments,
              const std::vector<tvm::ffi::Tensor>& outputs, const StateStore& states,
              const Places& places = {});
  /// Let go of what Attach brought.
  void Detach();

  const Bindings& bindings() const { return bindings_; }
  /// On GPUs, of each step: what its kernel can do before the first run, or nothing.
  const std::vector<Kernel>& preparations() const { return preparations_; }
  /// The same for calls that compute, of kernels that touch arenas alone: there is nothing there
  /// yet that they could spoil.
  const std::vector<Kernel>& warm_ups() const { return warm_ups_; }
  /// On GPUs: of each buffer, the parameter in pinned memory that it is.
  const CudaBackend::PinnedBuffers& pinned() const { return pinned_; }
  /// On GPUs: the memory of arguments and outputs.
  GivenMemory& given() { return *given_; }

 private:
  /// A slot in a kernel's arguments that changes from run to run.
  struct Patch {
    tvm::ffi::AnyView* slot;
    int buffer;
    int device;  // the kernel's
  };

  void BindArenas(const Arenas& arenas);
  bool InArena(int buffer) const;
  bool InArenas(const Step& step) const;
  void AttachElsewhere(ParameterStore& parameters);
  /// The tensor that a kernel of `device` is given for a buffer outside the arenas.
  tvm::ffi::Tensor& ViewFor(int buffer, int device);
  void BindKernel(int step, tvm::ffi::Function function);
  /// A call of a function with the arguments of a step.
  Kernel CallOf(int step, tvm::ffi::Function function) const;
  /// Copy what a kernel of the "packed" calling convention returned into its output buffers.
  void StoreResults(int step, const tvm::ffi::Any& result) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<tvm::ffi::Tensor> tensors_;                  // of each buffer
  std::vector<std::vector<tvm::ffi::AnyView>> arguments_;  // of each step's kernel
  std::vector<Patch> patches_;
  Bindings bindings_;
  std::vector<Kernel> preparations_, warm_ups_;

  std::shared_ptr<const cuda::Devices> devices_;  // null on CPUs
  std::vector<bool> elsewhere_;
  std::map<int, std::shared_ptr<std::byte>> held_;  // by buffer: what lies elsewhere
  std::unique_ptr<GivenMemory> given_;
  CudaBackend::PinnedBuffers pinned_;
  std::optional<std::uint64_t> attached_;  // the version of the parameters
  // On GPUs, a tensor says on which one it is used; of buffers outside the arenas, by GPU.
  std::map<std::pair<int, int>, tvm::ffi::Tensor> views_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_BOUND_PLAN_H_
