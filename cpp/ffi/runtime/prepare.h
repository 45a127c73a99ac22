// Gives kernel modules the parameters before the first run.
#ifndef TVM_SCHED_FFI_RUNTIME_PREPARE_H_
#define TVM_SCHED_FFI_RUNTIME_PREPARE_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>

#include "ffi/runtime/parameters.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// Inputs of kernels by the name of the function: tensors of parameters, null for all others.
using ParameterInputs =
    tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Array<tvm::ffi::Optional<tvm::ffi::Tensor>>>;

/// Of the functions that a plan for CPUs calls with parameters; all have values.
ParameterInputs ParametersOfKernels(const Plan& plan, const ParameterStore& parameters);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_PREPARE_H_
