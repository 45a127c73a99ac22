#include "arrays.h"

#include <cstdlib>

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
  TVM_FFI_CHECK(tensor.device().device_type == kDLCPU && dtype.code == kType<T>.code &&
                    dtype.bits == kType<T>.bits && dtype.lanes == 1 && tensor.IsContiguous(),
                TypeError)
      << name << " must be a contiguous " << ffi::DLDataTypeToString(kType<T>)
      << " array in host memory";
  auto* data = reinterpret_cast<T*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
  return {data, static_cast<size_t>(tensor.numel())};
}

template <typename T>
std::span<T> Elements(const char* name, const ffi::TensorView& tensor, size_t size) {
  std::span<T> elements = Elements<T>(name, tensor);
  TVM_FFI_CHECK(elements.size() == size, ValueError)
      << name << " has " << elements.size() << " elements, " << size << " are needed";
  return elements;
}

template <typename T>
ffi::Tensor NewTensor(std::initializer_list<int64_t> shape) {
  return ffi::Tensor::FromNDAlloc(HostMemory(), ffi::Shape(shape), kType<T>, DLDevice{kDLCPU, 0});
}

template std::span<int64_t> Elements(const char*, const ffi::TensorView&);
template std::span<double> Elements(const char*, const ffi::TensorView&);
template std::span<int64_t> Elements(const char*, const ffi::TensorView&, size_t);
template std::span<double> Elements(const char*, const ffi::TensorView&, size_t);
template ffi::Tensor NewTensor<int64_t>(std::initializer_list<int64_t>);
template ffi::Tensor NewTensor<double>(std::initializer_list<int64_t>);

simulate::Schedule ScheduleOf(const ffi::TensorView& placements, const ffi::TensorView& transfers) {
  const std::span<int64_t> p = Elements("placements", placements),
                           x = Elements("transfers", transfers);
  TVM_FFI_CHECK(p.size() % 5 == 0 && x.size() % 5 == 0, ValueError)
      << "placements has 5 rows (operator, device, direct, stream, stage), transfers has 5 (kind, "
         "item, source, device, evict)";
  const size_t np = p.size() / 5, nx = x.size() / 5;
  simulate::Schedule schedule;
  schedule.placements.resize(np);
  schedule.transfers.resize(nx);
  for (size_t i = 0; i < np; ++i) {
    schedule.placements[i] = {static_cast<int32_t>(p[i]), static_cast<int32_t>(p[np + i]),
                              p[2 * np + i] != 0, static_cast<int32_t>(p[3 * np + i]),
                              static_cast<int32_t>(p[4 * np + i])};
  }
  for (size_t i = 0; i < nx; ++i) {
    schedule.transfers[i] = {static_cast<simulate::TransferKind>(x[i]),
                             static_cast<int32_t>(x[nx + i]), static_cast<int32_t>(x[2 * nx + i]),
                             static_cast<int32_t>(x[3 * nx + i]), x[4 * nx + i] != 0};
  }
  return schedule;
}

ffi::Array<ffi::Tensor> TablesOf(const simulate::Schedule& schedule) {
  ffi::Tensor placements = NewTensor({std::ssize(schedule.placements), 5});
  auto* row = static_cast<int64_t*>(placements.data_ptr());
  for (const simulate::Placement& p : schedule.placements) {
    for (int64_t value : {p.op, p.device, int32_t{p.direct}, p.stream, p.stage}) *row++ = value;
  }
  ffi::Tensor transfers = NewTensor({std::ssize(schedule.transfers), 5});
  row = static_cast<int64_t*>(transfers.data_ptr());
  for (const simulate::Transfer& x : schedule.transfers) {
    for (int64_t value :
         {static_cast<int32_t>(x.kind), x.item, x.source, x.device, int32_t{x.evict}})
      *row++ = value;
  }
  return {placements, transfers};
}

}  // namespace tvm_sched
