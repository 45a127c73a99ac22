// Binds "tvm_sched.region_least_time".
#include "search/region.h"

#include <tvm/ffi/tvm_ffi.h>

#include <span>

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;

/*! \brief The elements of a contiguous float64 tensor on the host. */
std::span<const double> Numbers(const char* name, const ffi::TensorView& tensor, size_t size) {
  const DLDataType dtype = tensor.dtype();
  TVM_FFI_CHECK(tensor.device().device_type == kDLCPU && dtype.code == kDLFloat &&
                    dtype.bits == 64 && dtype.lanes == 1 && tensor.IsContiguous(),
                TypeError)
      << name << " must be a contiguous float64 array in host memory";
  TVM_FFI_CHECK(static_cast<size_t>(tensor.numel()) == size, ValueError)
      << name << " has " << tensor.numel() << " elements, " << size << " are needed";
  const auto* data =
      reinterpret_cast<const double*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
  return {data, size};
}

/*!
 * \param time operators x devices.
 * \param ends From and to of each edge, in turn.
 * \param lag edges x devices x devices.
 */
double LeastTime(ffi::TensorView time, ffi::Array<int64_t> ends, ffi::TensorView lag,
                 int64_t operators, int64_t devices, int64_t nodes) {
  search::Region region;
  region.devices = static_cast<size_t>(devices);
  const auto times = Numbers("time", time, static_cast<size_t>(operators * devices));
  region.time = {static_cast<size_t>(operators), region.devices, 0.0};
  region.time.value.assign(times.begin(), times.end());
  const size_t square = region.devices * region.devices, count = ends.size() / 2;
  const auto lags = Numbers("lag", lag, count * square);
  for (size_t e = 0; e < count; ++e) {
    const int64_t from = ends[2 * e], to = ends[2 * e + 1];
    TVM_FFI_CHECK(-1 <= from && from < to && to < operators, IndexError)
        << "edge from " << from << " to " << to << " of " << operators << " operators";
    search::Region::Edge edge{static_cast<int32_t>(from),
                              static_cast<int32_t>(to),
                              {region.devices, region.devices, 0.0}};
    edge.lag.value.assign(lags.begin() + static_cast<ptrdiff_t>(e * square),
                          lags.begin() + static_cast<ptrdiff_t>((e + 1) * square));
    region.edges.push_back(std::move(edge));
  }
  return search::LeastTime(region, nodes);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("tvm_sched.region_least_time", LeastTime);
}

}  // namespace
}  // namespace tvm_sched
