#include "ffi/runtime/tensors.h"

#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "runtime/throw.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
using ffi::Tensor;

namespace {

constexpr DLDevice kCpu{kDLCPU, 0};

struct OwnedMemory {
  void AllocData(DLTensor* tensor) {
    const std::size_t size = ffi::GetDataSize(*tensor);
    tensor->data = ::operator new(size > 0 ? size : 1, std::align_val_t{kAlignment});
  }
  void FreeData(DLTensor* tensor) { ::operator delete(tensor->data, std::align_val_t{kAlignment}); }
};

struct BorrowedMemory {
  std::shared_ptr<const void> owner;
  void* data;
  void AllocData(DLTensor* tensor) { tensor->data = data; }
  void FreeData(DLTensor*) { owner.reset(); }
};

ffi::ShapeView ShapeOf(const TensorSpec& spec) {
  return ffi::ShapeView(spec.shape.data(), spec.shape.size());
}

/// Copy a strided tensor into compact memory, the last dimension in the inner loop.
void CopyCompact(const DLTensor& from, std::byte* to) {
  const std::size_t item = from.dtype.bits * from.dtype.lanes / 8;
  const int last = from.ndim - 1;
  const std::byte* base = static_cast<const std::byte*>(from.data) + from.byte_offset;
  std::vector<std::int64_t> index(from.ndim, 0);
  while (true) {
    std::int64_t offset = 0;
    for (int d = 0; d < last; ++d) offset += index[d] * from.strides[d];
    for (std::int64_t i = 0; i < from.shape[last]; ++i, to += item) {
      std::memcpy(to, base + (offset + i * from.strides[last]) * static_cast<std::int64_t>(item),
                  item);
    }
    int d = last - 1;
    while (d >= 0 && ++index[d] == from.shape[d]) index[d--] = 0;
    if (d < 0) return;
  }
}

}  // namespace

Tensor AllocateTensor(const TensorSpec& spec) {
  return Tensor::FromNDAlloc(OwnedMemory(), ShapeOf(spec), spec.dtype, kCpu);
}

Tensor ViewTensor(const TensorSpec& spec, std::shared_ptr<const void> owner, void* data,
                  DLDevice device) {
  return Tensor::FromNDAlloc(BorrowedMemory{std::move(owner), data}, ShapeOf(spec), spec.dtype,
                             device);
}

std::byte* DataOf(const Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr()) + tensor.byte_offset();
}

TensorSpec SpecOf(const Tensor& tensor, std::string name) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.shape.assign(tensor.shape().begin(), tensor.shape().end());
  spec.dtype = tensor.dtype();
  return spec;
}

bool OnGpu(const Tensor& tensor) { return tensor.device().device_type == kDLCUDA; }

void CheckOnHost(const Tensor& tensor, const std::string& what) {
  const DLDeviceType device = tensor.device().device_type;
  if (device == kDLCPU || device == kDLCUDAHost) return;
  TVM_SCHED_THROW(ValueError) << what << " is on a device of DLPack type " << device
                              << ", expected a tensor in the CPU's memory";
}

Tensor ReadyForKernel(const Tensor& tensor, const std::string& what) {
  const bool ready = tensor.device().device_type == kDLCPU && tensor.IsContiguous() &&
                     tensor.byte_offset() == 0 && IsAligned(tensor.data_ptr());
  return ready ? tensor : CopyOf(tensor, what);
}

Tensor CopyOf(const Tensor& tensor, const std::string& what) {
  CheckOnHost(tensor, what);
  const TensorSpec spec = SpecOf(tensor);
  Tensor copy = AllocateTensor(spec);
  if (spec.size().count == 0) return copy;
  if (tensor.IsContiguous()) {
    std::memcpy(copy.data_ptr(), DataOf(tensor), static_cast<std::size_t>(spec.size().count));
  } else if (spec.dtype.bits * spec.dtype.lanes % 8 != 0) {
    TVM_SCHED_THROW(ValueError) << what << " is " << spec.ToString()
                                << " and strided; elements smaller than a byte must be compact";
  } else {
    CopyCompact(*tensor.GetDLTensorPtr(), static_cast<std::byte*>(copy.data_ptr()));
  }
  return copy;
}

}  // namespace tvm_sched::runtime
