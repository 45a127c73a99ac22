// A plan with memory and kernels: what is made once, so that a run allocates outputs only.
#ifndef TVM_SCHED_FFI_RUNTIME_BOUND_PLAN_H_
#define TVM_SCHED_FFI_RUNTIME_BOUND_PLAN_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ffi/runtime/parameters.h"
#include "runtime/executor.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

class BoundPlan {
 public:
  using Lookup = std::function<std::optional<tvm::ffi::Function>(const std::string& name)>;

  using Arenas = std::vector<std::shared_ptr<std::byte>>;

  /// Lay the buffers into the arenas (one a device) and look up the kernels. Throws ffi::Error
  /// (RuntimeError) where a function is not there; the message names it and the operator.
  BoundPlan(std::shared_ptr<const Plan> plan, const Arenas& arenas, const Lookup& lookup);

  /// Put the parameters' values in their places.
  void AttachParameters(const ParameterStore& parameters);
  /// Put one run's tensors in their places.
  void Attach(const std::vector<tvm::ffi::Tensor>& arguments,
              const std::vector<tvm::ffi::Tensor>& outputs);
  /// Let go of what Attach brought.
  void Detach();

  const Bindings& bindings() const { return bindings_; }

 private:
  /// A slot in a kernel's arguments that changes from run to run.
  struct Patch {
    tvm::ffi::AnyView* slot;
    int buffer;
  };

  void BindArenas(const Arenas& arenas);
  void BindKernel(int step, tvm::ffi::Function function);
  /// Copy what a kernel of the "packed" calling convention returned into its output buffers.
  void StoreResults(int step, const tvm::ffi::Any& result) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<tvm::ffi::Tensor> tensors_;                  // of each buffer
  std::vector<std::vector<tvm::ffi::AnyView>> arguments_;  // of each step's kernel
  std::vector<Patch> patches_;
  Bindings bindings_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_BOUND_PLAN_H_
