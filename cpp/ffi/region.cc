// Binds "tvm_sched.region_least_time".
#include "search/region.h"

#include <tvm/ffi/tvm_ffi.h>

#include <utility>

#include "ffi/arrays.h"

namespace tvm_sched {
namespace {

/*!
 * \param time By operator and device.
 * \param from, to Operators that each edge joins; -1 for what is before the region.
 * \param lag By edge, device of its first and device of its second operator.
 */
double LeastTime(Floats time, Integers from, Integers to, Floats lag, int64_t nodes) {
  TVM_FFI_CHECK(time.ndim() == 2, ValueError)
      << "time has " << time.ndim() << " dimensions, not operators x devices";
  const auto operators = time.size(0);
  const auto devices = static_cast<size_t>(time.size(1));
  search::Region region;
  region.devices = devices;
  const auto times = Elements<double>("time", time);
  region.time = {static_cast<size_t>(operators), devices, 0.0};
  region.time.value.assign(times.begin(), times.end());
  const auto first = Elements("from", from), second = Elements("to", to, first.size());
  const size_t square = devices * devices;
  const auto lags = Elements<double>("lag", lag, first.size() * square);
  for (size_t e = 0; e < first.size(); ++e) {
    TVM_FFI_CHECK(-1 <= first[e] && first[e] < second[e] && second[e] < operators, IndexError)
        << "edge from " << first[e] << " to " << second[e] << " of " << operators << " operators";
    search::Region::Edge edge{
        static_cast<int32_t>(first[e]), static_cast<int32_t>(second[e]), {devices, devices, 0.0}};
    const auto of_edge = lags.subspan(e * square, square);
    edge.lag.value.assign(of_edge.begin(), of_edge.end());
    region.edges.push_back(std::move(edge));
  }
  return search::LeastTime(region, nodes);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("tvm_sched.region_least_time", LeastTime);
}

}  // namespace
}  // namespace tvm_sched
