// Makes and registers the object "tvm_sched.Problem".
#include "problem.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "arrays.h"
#include "partial_schedule.h"
#include "schedule.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using simulate::Bytes;
using simulate::Nanoseconds;
using Arrays = ffi::Map<ffi::String, ffi::Any>;

/*! \brief A table of times from an array of rows x columns. */
simulate::Matrix<Nanoseconds> TimesOf(const char* name, const ffi::TensorView& tensor, size_t rows,
                                      size_t columns) {
  simulate::Matrix<Nanoseconds> matrix(rows, columns, Nanoseconds{});
  const std::span<int64_t> elements = Elements(name, tensor, rows * columns);
  for (size_t i = 0; i < elements.size(); ++i) matrix.value[i].count = elements[i];
  return matrix;
}

/*! \brief Rows from their offsets and their elements, each of which is below `limit`. */
simulate::Rows<int32_t> RowsOf(const char* name, const ffi::TensorView& offsets,
                               const ffi::TensorView& values, size_t limit) {
  const std::span<int64_t> offset = Elements(name, offsets), value = Elements(name, values);
  simulate::Rows<int32_t> rows;
  rows.offset.assign(offset.begin(), offset.end());
  rows.value.assign(value.begin(), value.end());
  bool right =
      !offset.empty() && offset.front() == 0 && offset.back() == static_cast<int64_t>(value.size());
  for (size_t i = 1; i < offset.size(); ++i) right = right && offset[i - 1] <= offset[i];
  for (int64_t v : value) right = right && v >= 0 && v < static_cast<int64_t>(limit);
  TVM_FFI_CHECK(right, ValueError) << name << " does not hold rows of indices below " << limit;
  return rows;
}

/*! \brief Tensors from rows of size, stays (0 or 1), resident (0 or 1); producers from the
 * operators' outputs. */
std::vector<simulate::Tensor> TensorsOf(const ffi::TensorView& tensors,
                                        const simulate::Rows<int32_t>& outputs) {
  const std::span<int64_t> elements = Elements("tensors", tensors);
  std::vector<simulate::Tensor> result(elements.size() / 3);
  for (size_t t = 0; t < result.size(); ++t) {
    result[t].size = Bytes{elements[3 * t]};
    result[t].stays = elements[3 * t + 1] != 0;
    result[t].resident = elements[3 * t + 2] != 0;
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    for (int32_t t : outputs[o]) result[t].producer = static_cast<int32_t>(o);
  }
  return result;
}

std::span<const double> Numbers(const char* name, const ffi::TensorView& array, size_t divisor) {
  const DLDataType dtype = array.dtype();
  const auto count = static_cast<size_t>(array.numel());
  TVM_FFI_CHECK(dtype.code == kDLFloat && dtype.bits == 64 && array.IsContiguous() &&
                    count % std::max<size_t>(divisor, 1) == 0,
                ValueError)
      << name << " holds 64-bit numbers, a multiple of " << divisor << " of them";
  return {reinterpret_cast<const double*>(static_cast<const char*>(array.data_ptr()) +
                                          array.byte_offset()),
          count};
}

/*! \brief Numbers by operator, device and resource; rows of device, operator, operator,
 * nanoseconds.
 */
template <typename Array>
simulate::Concurrency ConcurrencyOf(const simulate::Problem& problem, double serial_share,
                                    double factor, const Array& array) {
  const size_t rows = problem.operators() * problem.devices.size();
  const std::span<const double> used = Numbers("utilisation", array("utilisation"), rows);
  if (rows == 0 || used.empty()) return {};
  const size_t resources = used.size() / rows;
  simulate::Concurrency result(serial_share, problem.devices.size(), resources,
                               {used.begin(), used.end()});
  const std::span<const double> excess = Numbers("excess", array("excess"), resources);
  const std::span<const double> crowding = Numbers("crowding", array("crowding"), rows);
  result.SetContention({excess.begin(), excess.end()}, {crowding.begin(), crowding.end()}, factor);
  const ffi::TensorView threads = array("threads"), pairs = array("pairs");
  const std::span<int64_t> on_devices = Elements("threads", threads);
  if (!on_devices.empty()) {
    Elements("threads", threads, problem.devices.size());
    result.SetThreads({on_devices.begin(), on_devices.end()});
  }
  const std::span<int64_t> row = Elements("pairs", pairs);
  for (size_t i = 0; i + 3 < row.size(); i += 4) {
    const auto device = static_cast<int32_t>(row[i]);
    const auto a = static_cast<int32_t>(row[i + 1]), b = static_cast<int32_t>(row[i + 2]);
    result.AddPair(device, {a, 0, problem.operator_time(a, device)},
                   {b, 1, problem.operator_time(b, device)}, Nanoseconds{row[i + 3]});
  }
  return result;
}

void AddResidentRoute(simulate::Problem* problem) {
  const auto resident = [](const simulate::Tensor& tensor) { return tensor.resident; };
  if (std::ranges::none_of(problem->tensors, resident)) return;
  simulate::Matrix<Nanoseconds>& times = problem->transfer_time;
  problem->resident_route = static_cast<int32_t>(problem->route_channels.size());
  problem->route_channels.EndRow();
  problem->route_speed.push_back(static_cast<int32_t>(times.value.size() / times.columns));
  times.value.resize(times.value.size() + times.columns);
}

/*! \brief A problem from the arrays that `_arrays` in python/tvm_sched/schedule/native.py makes, by
 * name. */
simulate::Problem ProblemOf(const Arrays& arrays) {
  const auto at = [&](const char* name) -> ffi::Any {
    const auto found = arrays.find(name);
    TVM_FFI_CHECK(found != arrays.end(), KeyError) << "a problem needs " << name;
    return (*found).second;
  };
  std::deque<ffi::Tensor> kept;  // views of tensors do not own them
  const auto array = [&](const char* name) {
    return ffi::TensorView(kept.emplace_back(at(name).cast<ffi::Tensor>()));
  };
  const auto number_of_channels = at("number_of_channels").cast<int64_t>();
  simulate::Problem problem;
  const size_t tensor_count = Elements("tensors", array("tensors")).size() / 3;
  problem.inputs = RowsOf("inputs", array("input_offsets"), array("inputs"), tensor_count);
  problem.outputs = RowsOf("outputs", array("output_offsets"), array("outputs"), tensor_count);
  problem.tensors = TensorsOf(array("tensors"), problem.outputs);
  const std::span<int64_t> device = Elements("devices", array("devices"));
  for (size_t i = 0; i + 3 < device.size(); i += 4) {
    problem.devices.push_back({Bytes{device[i]}, device[i + 1] != 0, Nanoseconds{device[i + 2]},
                               Nanoseconds{device[i + 3]}});
  }
  const size_t o = problem.operators(), d = problem.devices.size();
  TVM_FFI_CHECK(problem.outputs.size() == o, ValueError)
      << "inputs and outputs have different numbers of rows";
  problem.operator_time = TimesOf("operator_ns", array("operator_ns"), o, d);
  problem.direct_time = TimesOf("direct_ns", array("direct_ns"), o, d);
  problem.host_read_time = TimesOf("host_read_ns", array("host_read_ns"), o, d);
  problem.channels = static_cast<int32_t>(number_of_channels);
  problem.route_channels =
      RowsOf("channels", array("channel_offsets"), array("channels"), number_of_channels);
  const std::span<int64_t> routes = Elements("route", array("route"), (d + 1) * (d + 1));
  problem.route = {d + 1, d + 1, simulate::kNone};
  problem.route.value.assign(routes.begin(), routes.end());
  for (int64_t r : routes) {
    TVM_FFI_CHECK(r >= -1 && r < static_cast<int64_t>(problem.route_channels.size()), IndexError)
        << "route " << r;
  }
  const size_t speeds =
      tensor_count == 0 ? 0 : Elements("transfer_ns", array("transfer_ns")).size() / tensor_count;
  problem.transfer_time = TimesOf("transfer_ns", array("transfer_ns"), speeds, tensor_count);
  for (int64_t s : Elements("route_speed", array("route_speed"), problem.route_channels.size())) {
    TVM_FFI_CHECK(s >= 0 && (tensor_count == 0 || s < static_cast<int64_t>(speeds)), IndexError)
        << "speed " << s;
    problem.route_speed.push_back(static_cast<int32_t>(s));
  }
  const std::span<int64_t> lags = Elements("lag_ns", array("lag_ns"));
  TVM_FFI_CHECK(lags.empty() || lags.size() == o, ValueError) << "lag_ns has one for each operator";
  for (int64_t lag : lags) problem.lag.push_back(Nanoseconds{lag});
  AddResidentRoute(&problem);
  problem.concurrency =
      ConcurrencyOf(problem, at("serial_share").cast<double>(), at("factor").cast<double>(), array);
  return problem;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  refl::ObjectDef<ProblemObj>(refl::init(false))
      .def_static(
          "make",
          [](const Arrays& arrays) { return ffi::ObjectRef(ffi::make_object<ProblemObj>(arrays)); })
      .def("schedule",
           [](const ProblemObj* problem, ffi::TensorView placements, ffi::TensorView transfers) {
             return ffi::ObjectRef(ffi::make_object<ScheduleObj>(problem, placements, transfers));
           })
      .def("schedule_of_sequence",
           [](const ProblemObj* problem, ffi::TensorView sequence) {
             return ffi::ObjectRef(ffi::make_object<ScheduleObj>(problem, sequence));
           })
      .def("least_pair_ratio", &ProblemObj::LeastPairRatio)
      .def("list_schedule", &ProblemObj::ListSchedule)
      .def("hios", &ProblemObj::Hios)
      .def("ios", &ProblemObj::Ios)
      .def("anneal", &ProblemObj::Anneal)
      .def("allocate_streams", &ProblemObj::AllocateStreams)
      .def("count_synchronizations", &ProblemObj::CountSynchronizations)
      .def("order_launches", &ProblemObj::OrderLaunches)
      .def("construct", &ProblemObj::Construct)
      .def("improve",
           [](const ProblemObj* problem, ffi::TensorView start, double memory_scale, int64_t seed,
              int64_t goal, ffi::Array<ffi::Any> others) {
             return ffi::ObjectRef(ffi::make_object<LocalSearchObj>(problem, start, memory_scale,
                                                                    seed, goal, std::move(others)));
           })
      .def("partial_schedule", [](const ProblemObj* problem, double memory_scale) {
        return ffi::ObjectRef(ffi::make_object<PartialScheduleObj>(problem, memory_scale));
      });
  refl::ObjectDef<LocalSearchObj>(refl::init(false))
      .def("step", &LocalSearchObj::Step)
      .def("latency_ns", &LocalSearchObj::LatencyNs)
      .def("best", &LocalSearchObj::Best);
}

}  // namespace

ProblemObj::ProblemObj(const Arrays& arrays) : problem_(ProblemOf(arrays)) {}

const search::TaskGraph& ProblemObj::Graph() const {
  std::call_once(graph_made_, [this] { graph_ = std::make_unique<search::TaskGraph>(problem_); });
  return *graph_;
}

const search::Instance& ProblemObj::EventInstance() const {
  std::call_once(instance_made_,
                 [this] { instance_ = std::make_unique<search::Instance>(problem_); });
  return *instance_;
}

}  // namespace tvm_sched
