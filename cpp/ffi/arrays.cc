#include "ffi/arrays.h"

#include <cstdlib>

#include "runtime/throw.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;

struct HostMemory {
  void AllocData(DLTensor* tensor) { tensor->data = std::malloc(ffi::GetDataSize(*tensor) + 1); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

template <typename T>
constexpr DLDataType kType{std::is_floating_point_v<T> ? kDLFloat : kDLInt, 8 * sizeof(T), 1};

}  // namespace

template <typename T>
std::span<T> Elements(const char* name, const ffi::TensorView& tensor) {
  const DLDataType dtype = tensor.dtype();
  TVM_SCHED_CHECK(tensor.device().device_type == kDLCPU && dtype.code == kType<T>.code &&
                      dtype.bits == kType<T>.bits && dtype.lanes == 1 && tensor.IsContiguous(),
                  TypeError)
      << name << " must be a contiguous " << ffi::DLDataTypeToString(kType<T>)
      << " array in host memory";
  auto* data = reinterpret_cast<T*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
  return {data, static_cast<std::size_t>(tensor.numel())};
}

template <typename T>
std::span<T> Elements(const char* name, const ffi::TensorView& tensor, std::size_t size) {
  std::span<T> elements = Elements<T>(name, tensor);
  TVM_SCHED_CHECK(elements.size() == size, ValueError)
      << name << " has " << elements.size() << " elements, " << size << " are needed";
  return elements;
}

template <typename T>
ffi::Tensor NewTensor(std::initializer_list<std::int64_t> shape) {
  return ffi::Tensor::FromNDAlloc(HostMemory(), ffi::Shape(shape), kType<T>, DLDevice{kDLCPU, 0});
}

template std::span<std::int64_t> Elements(const char*, const ffi::TensorView&);
template std::span<double> Elements(const char*, const ffi::TensorView&);
template std::span<std::int64_t> Elements(const char*, const ffi::TensorView&, std::size_t);
template std::span<double> Elements(const char*, const ffi::TensorView&, std::size_t);
template ffi::Tensor NewTensor<std::int64_t>(std::initializer_list<std::int64_t>);
template ffi::Tensor NewTensor<double>(std::initializer_list<std::int64_t>);

}  // namespace tvm_sched
