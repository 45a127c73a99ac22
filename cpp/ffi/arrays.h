// Arrays of 64-bit numbers that travel between Python and C++.
#ifndef TVM_SCHED_FFI_ARRAYS_H_
#define TVM_SCHED_FFI_ARRAYS_H_

#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "runtime/throw.h"

namespace tvm_sched {

/// An array that a Python caller passes and keeps: a parameter of a bound function.
template <typename T>
class ArrayView : public tvm::ffi::TensorView {
 public:
  using TensorView::TensorView;
  explicit ArrayView(const TensorView& view) : TensorView(view) {}
};

using Integers = ArrayView<std::int64_t>;
using Floats = ArrayView<double>;

/// The elements of a contiguous tensor on the host: int64_t or double.
template <typename T = std::int64_t>
std::span<T> Elements(const char* name, const tvm::ffi::TensorView& tensor);

/// The same, of which there must be `size`.
template <typename T = std::int64_t>
std::span<T> Elements(const char* name, const tvm::ffi::TensorView& tensor, std::size_t size);

/// A new tensor of int64_t or double.
template <typename T = std::int64_t>
tvm::ffi::Tensor NewTensor(std::initializer_list<std::int64_t> shape);

/// A new row of int64_t or double with these values.
template <typename T, typename Values>
tvm::ffi::Tensor NewRow(const Values& values) {
  tvm::ffi::Tensor row = NewTensor<T>({std::ssize(values)});
  std::copy(values.begin(), values.end(), static_cast<T*>(row.data_ptr()));
  return row;
}

/// A new row of the counts of quantities such as nanoseconds.
template <typename Quantities>
tvm::ffi::Tensor NewRowOfCounts(const Quantities& quantities) {
  tvm::ffi::Tensor row = NewTensor({std::ssize(quantities)});
  auto* out = static_cast<std::int64_t*>(row.data_ptr());
  for (const auto& quantity : quantities) *out++ = quantity.count;
  return row;
}

/// A new table with a row of `columns` numbers for each element of a range.
template <typename Range, typename Numbers>
tvm::ffi::Tensor NewTable(const Range& range, std::int64_t columns, Numbers numbers_of) {
  tvm::ffi::Tensor table = NewTensor({std::ssize(range), columns});
  auto* out = static_cast<std::int64_t*>(table.data_ptr());
  for (const auto& element : range) {
    for (std::int64_t number : numbers_of(element)) *out++ = number;
  }
  return table;
}

/// Arrays and numbers by name, of which an object is made.
class NamedValues {
 public:
  using Values = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

  /// \param owner What is made of them, for messages.
  NamedValues(const char* owner, const Values& values) : owner_(owner), values_(values) {}

  double Number(const char* name) const { return At(name).cast<double>(); }
  std::int64_t Integer(const char* name) const { return At(name).cast<std::int64_t>(); }
  tvm::ffi::Tensor Tensor(const char* name) const { return At(name).cast<tvm::ffi::Tensor>(); }
  /// The elements of an array, which are there as long as the values are.
  template <typename T = std::int64_t>
  std::span<T> Elements(const char* name) const {
    const tvm::ffi::Tensor tensor = Tensor(name);
    return tvm_sched::Elements<T>(name, tensor);
  }
  template <typename T = std::int64_t>
  std::span<T> Elements(const char* name, std::size_t size) const {
    const tvm::ffi::Tensor tensor = Tensor(name);
    return tvm_sched::Elements<T>(name, tensor, size);
  }

 private:
  tvm::ffi::Any At(const char* name) const {
    const auto found = values_.find(name);
    TVM_SCHED_CHECK(found != values_.end(), KeyError) << owner_ << " needs " << name;
    return (*found).second;
  }

  const char* owner_;
  const Values values_;
};

}  // namespace tvm_sched

namespace tvm::ffi {

/// As a `TensorView`, under a name that generated stubs map to an array of NumPy.
template <typename T>
struct TypeTraits<tvm_sched::ArrayView<T>> : public TypeTraitsBase {
  static constexpr bool storage_enabled = false;

  static std::optional<tvm_sched::ArrayView<T>> TryCastFromAnyView(const TVMFFIAny* value) {
    const auto view = TypeTraits<TensorView>::TryCastFromAnyView(value);
    if (!view) return std::nullopt;
    return tvm_sched::ArrayView<T>(*view);
  }
  static std::string TypeStr() { return TypeTraits<TensorView>::TypeStr(); }
  static std::string TypeSchema() {
    return std::is_integral_v<T> ? R"({"type":"tvm_sched.Integers"})"
                                 : R"({"type":"tvm_sched.Floats"})";
  }
};

}  // namespace tvm::ffi

#endif  // TVM_SCHED_FFI_ARRAYS_H_
