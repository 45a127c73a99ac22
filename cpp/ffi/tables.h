// int64 arrays that cross between Python and the core.
#ifndef TVM_SCHED_FFI_TABLES_H_
#define TVM_SCHED_FFI_TABLES_H_

#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>
#include <cstdlib>
#include <span>

namespace tvm_sched {

/*! \brief The elements of a contiguous int64 tensor on the host. */
inline std::span<int64_t> Elements(const char* name, const tvm::ffi::TensorView& tensor) {
  const DLDataType dtype = tensor.dtype();
  TVM_FFI_CHECK(tensor.device().device_type == kDLCPU && dtype.code == kDLInt && dtype.bits == 64 &&
                    dtype.lanes == 1 && tensor.IsContiguous(),
                TypeError)
      << name << " must be a contiguous int64 array in host memory";
  auto* data =
      reinterpret_cast<int64_t*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
  return {data, static_cast<size_t>(tensor.numel())};
}

inline std::span<int64_t> Elements(const char* name, const tvm::ffi::TensorView& tensor,
                                   size_t size) {
  std::span<int64_t> elements = Elements(name, tensor);
  TVM_FFI_CHECK(elements.size() == size, ValueError)
      << name << " has " << elements.size() << " elements, " << size << " are needed";
  return elements;
}

struct HostMemory {
  void AllocData(DLTensor* tensor) {
    tensor->data = std::malloc(tvm::ffi::GetDataSize(*tensor) + 1);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

/*! \brief A new rows x columns int64 tensor. */
inline tvm::ffi::Tensor NewTable(int64_t rows, int64_t columns) {
  return tvm::ffi::Tensor::FromNDAlloc(HostMemory(), tvm::ffi::Shape({rows, columns}),
                                       DLDataType{kDLInt, 64, 1}, DLDevice{kDLCPU, 0});
}

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_TABLES_H_
