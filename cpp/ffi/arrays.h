// Arrays of 64-bit numbers that travel between Python and C++.
#ifndef TVM_SCHED_FFI_ARRAYS_H_
#define TVM_SCHED_FFI_ARRAYS_H_

#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace tvm_sched {

/*! \brief The elements of a contiguous tensor on the host: int64_t or double. */
template <typename T = int64_t>
std::span<T> Elements(const char* name, const tvm::ffi::TensorView& tensor);

/*! \brief The same, of which there must be `size`. */
template <typename T = int64_t>
std::span<T> Elements(const char* name, const tvm::ffi::TensorView& tensor, size_t size);

/*! \brief A new tensor of int64_t or double. */
template <typename T = int64_t>
tvm::ffi::Tensor NewTensor(std::initializer_list<int64_t> shape);

/*! \brief A new row of int64_t or double with these values. */
template <typename T, typename Values>
tvm::ffi::Tensor NewRow(const Values& values) {
  tvm::ffi::Tensor row = NewTensor<T>({std::ssize(values)});
  std::copy(values.begin(), values.end(), static_cast<T*>(row.data_ptr()));
  return row;
}

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_ARRAYS_H_
