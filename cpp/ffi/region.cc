// Binds "tvm_sched.region_least_cost", "tvm_sched.region_least_time_with_ports" and
// "tvm_sched.enumerate".
#include "search/region.h"

#include <tvm/ffi/tvm_ffi.h>

#include <utility>

#include "ffi/arrays.h"
#include "runtime/throw.h"
#include "search/enumeration.h"
#include "search/region_ports.h"

namespace tvm_sched {
namespace {

/// \param time By operator and option; option `i` is one of the device `i % devices`.
/// \param price By operator and option, of no size if nothing costs anything.
/// \param weight Price of a nanosecond.
/// \param from, to Operators that each edge joins; -1 for what is before the region.
/// \param lag By edge, device of its first and device of its second operator.
double LeastCost(Floats time, Floats price, double weight, std::int64_t number, Integers from,
                 Integers to, Floats lag, std::int64_t nodes) {
  TVM_SCHED_CHECK(time.ndim() == 2, ValueError)
      << "time has " << time.ndim() << " dimensions, not operators x options";
  TVM_SCHED_CHECK(number > 0 && time.size(1) % number == 0, ValueError)
      << time.size(1) << " options of " << number << " devices";
  const auto operators = time.size(0);
  const auto devices = static_cast<std::size_t>(number);
  const auto options = static_cast<std::size_t>(time.size(1));
  search::Region region;
  region.devices = devices;
  region.weight = weight;
  const auto times = Elements<double>("time", time);
  region.time = {static_cast<std::size_t>(operators), options, 0.0};
  region.time.value.assign(times.begin(), times.end());
  if (price.numel() > 0) {
    const auto prices = Elements<double>("price", price, times.size());
    region.price = {static_cast<std::size_t>(operators), options, 0.0};
    region.price.value.assign(prices.begin(), prices.end());
  }
  const auto first = Elements("from", from), second = Elements("to", to, first.size());
  const std::size_t square = devices * devices;
  const auto lags = Elements<double>("lag", lag, first.size() * square);
  for (std::size_t e = 0; e < first.size(); ++e) {
    TVM_SCHED_CHECK(-1 <= first[e] && first[e] < second[e] && second[e] < operators, IndexError)
        << "edge from " << first[e] << " to " << second[e] << " of " << operators << " operators";
    search::Region::Edge edge{static_cast<std::int32_t>(first[e]),
                              static_cast<std::int32_t>(second[e]),
                              {devices, devices, 0.0}};
    const auto of_edge = lags.subspan(e * square, square);
    edge.lag.value.assign(of_edge.begin(), of_edge.end());
    region.edges.push_back(std::move(edge));
  }
  return search::LeastCost(region, nodes);
}

/// \param time By operator.
/// \param maker By tensor: the operator that makes it; -1 for what is before the region.
/// \param copy By tensor.
/// \param tensor, reader Pairs of a tensor and an operator that reads it, by tensor and operator.
std::int64_t LeastTimeWithPorts(Integers time, Integers maker, Integers copy, Integers tensor,
                                Integers reader, std::int64_t devices, std::int64_t states) {
  search::PortRegion region;
  const auto times = Elements("time", time);
  const auto makers = Elements("maker", maker), copies = Elements("copy", copy, makers.size());
  const auto read = Elements("tensor", tensor), readers = Elements("reader", reader, read.size());
  TVM_SCHED_CHECK(devices > 0 && !times.empty(), ValueError)
      << "a region without operators or devices";
  const auto operators = static_cast<std::int64_t>(times.size());
  region.devices = static_cast<std::int32_t>(devices);
  region.time.assign(times.begin(), times.end());
  for (std::size_t t = 0; t < makers.size(); ++t) {
    TVM_SCHED_CHECK(-1 <= makers[t] && makers[t] < operators, IndexError)
        << "tensor " << t << " of operator " << makers[t] << " of " << operators;
    region.tensors.push_back({static_cast<std::int32_t>(makers[t]), copies[t], {}});
  }
  for (std::size_t i = 0; i < read.size(); ++i) {
    TVM_SCHED_CHECK(0 <= read[i] && static_cast<std::size_t>(read[i]) < makers.size(), IndexError)
        << "reader of tensor " << read[i] << " of " << makers.size();
    TVM_SCHED_CHECK(makers[read[i]] < readers[i] && readers[i] < operators, IndexError)
        << "operator " << readers[i] << " reads what " << makers[read[i]] << " makes";
    region.tensors[read[i]].readers.push_back(static_cast<std::int32_t>(readers[i]));
  }
  return search::LeastTimeWithPorts(region, states);
}

/// \param time By operator, in topological order.
/// \param from, to, delay By edge.
/// \return 1 if all states were looked at or a schedule was found, else 0; states; when the
/// schedule ends, -1 without one; its operators in the order of starts; their devices.
tvm::ffi::Array<std::int64_t> Enumerate(Integers time, Integers from, Integers to, Integers delay,
                                        std::int64_t devices, std::int64_t deadline,
                                        std::int64_t states) {
  search::DelayedGraph graph;
  const auto times = Elements("time", time);
  const auto first = Elements("from", from), second = Elements("to", to, first.size());
  const auto delays = Elements("delay", delay, first.size());
  TVM_SCHED_CHECK(devices > 0 && times.size() <= search::kMostEnumerated, ValueError)
      << times.size() << " operators on " << devices << " devices";
  graph.devices = static_cast<std::int32_t>(devices);
  graph.time.assign(times.begin(), times.end());
  for (std::size_t e = 0; e < first.size(); ++e) {
    TVM_SCHED_CHECK(
        0 <= first[e] && first[e] < second[e] && static_cast<std::size_t>(second[e]) < times.size(),
        IndexError)
        << "edge from " << first[e] << " to " << second[e];
    graph.edges.push_back(
        {static_cast<std::int32_t>(first[e]), static_cast<std::int32_t>(second[e]), delays[e]});
  }
  const auto found = search::Enumerate(graph, deadline, states);
  tvm::ffi::Array<std::int64_t> result{static_cast<std::int64_t>(found.complete), found.states,
                                       found.end};
  for (const std::int64_t o : found.order) result.push_back(o);
  for (const std::int64_t d : found.device) result.push_back(d);
  return result;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("tvm_sched.region_least_cost", LeastCost)
      .def("tvm_sched.region_least_time_with_ports", LeastTimeWithPorts)
      .def("tvm_sched.enumerate", Enumerate);
}

}  // namespace
}  // namespace tvm_sched
