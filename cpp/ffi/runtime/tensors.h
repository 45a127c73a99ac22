// Tensors as kernels want them: on the CPU, compact, aligned.
#ifndef TVM_SCHED_FFI_RUNTIME_TENSORS_H_
#define TVM_SCHED_FFI_RUNTIME_TENSORS_H_

#include <tvm/ffi/container/tensor.h>

#include <memory>
#include <string>

#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// A new CPU tensor, aligned to kAlignment; its values are undefined.
tvm::ffi::Tensor AllocateTensor(const TensorSpec& spec);

/// A tensor over memory that `owner` keeps alive.
tvm::ffi::Tensor ViewTensor(const TensorSpec& spec, std::shared_ptr<const void> owner, void* data,
                            DLDevice device = {kDLCPU, 0});

/// Whether a tensor lies in the memory of an NVIDIA GPU.
bool OnGpu(const tvm::ffi::Tensor& tensor);

/// `tensor` itself if a kernel can take it as it is, else a compact, aligned copy.
/// Throws ffi::Error where the tensor is not in CPU memory; `what` names it in the message.
tvm::ffi::Tensor ReadyForKernel(const tvm::ffi::Tensor& tensor, const std::string& what);

/// A compact, aligned copy of a tensor in CPU memory; errors as for ReadyForKernel.
tvm::ffi::Tensor CopyOf(const tvm::ffi::Tensor& tensor, const std::string& what);

/// Throws ffi::Error (ValueError) where a tensor is not in CPU memory.
void CheckOnHost(const tvm::ffi::Tensor& tensor, const std::string& what);

/// Shape and dtype.
TensorSpec SpecOf(const tvm::ffi::Tensor& tensor, std::string name = "");

std::byte* DataOf(const tvm::ffi::Tensor& tensor);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_TENSORS_H_
