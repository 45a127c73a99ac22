#include "ffi/problem_arrays.h"

#include <algorithm>
#include <vector>

#include "runtime/throw.h"

namespace tvm_sched {
namespace {

using simulate::Bytes;
using simulate::Nanoseconds;

/// A table of times from an array of rows x columns.
simulate::Matrix<Nanoseconds> TimesOf(const NamedValues& values, const char* name, std::size_t rows,
                                      std::size_t columns) {
  simulate::Matrix<Nanoseconds> matrix(rows, columns, Nanoseconds{});
  const std::span<std::int64_t> elements = values.Elements(name, rows * columns);
  for (std::size_t i = 0; i < elements.size(); ++i) matrix.value[i].count = elements[i];
  return matrix;
}

/// Rows from their offsets and their elements, each of which is below `limit`.
simulate::Rows<std::int32_t> RowsOf(const NamedValues& values, const char* offsets,
                                    const char* name, std::size_t limit) {
  const std::span<std::int64_t> offset = values.Elements(offsets), value = values.Elements(name);
  simulate::Rows<std::int32_t> rows;
  rows.offset.assign(offset.begin(), offset.end());
  rows.value.assign(value.begin(), value.end());
  bool right = !offset.empty() && offset.front() == 0 &&
               offset.back() == static_cast<std::int64_t>(value.size());
  for (std::size_t i = 1; i < offset.size(); ++i) right = right && offset[i - 1] <= offset[i];
  for (std::int64_t v : value) right = right && v >= 0 && v < static_cast<std::int64_t>(limit);
  TVM_SCHED_CHECK(right, ValueError) << name << " does not hold rows of indices below " << limit;
  return rows;
}

/// Sizes and where tensors are; their producers from the operators' outputs.
std::vector<simulate::Tensor> TensorsOf(const NamedValues& values,
                                        const simulate::Rows<std::int32_t>& outputs) {
  const std::span<std::int64_t> size = values.Elements("tensor_bytes");
  const std::span<std::int64_t> stays = values.Elements("tensor_stays", size.size());
  const std::span<std::int64_t> resident = values.Elements("tensor_resident", size.size());
  std::vector<simulate::Tensor> tensors(size.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    tensors[t].size = Bytes{size[t]};
    tensors[t].stays = stays[t] != 0;
    tensors[t].resident = resident[t] != 0;
  }
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    for (std::int32_t t : outputs[o]) tensors[t].producer = static_cast<std::int32_t>(o);
  }
  return tensors;
}

std::vector<simulate::Device> DevicesOf(const NamedValues& values) {
  const std::span<std::int64_t> memory = values.Elements("device_memory");
  const std::span<std::int64_t> shares =
      values.Elements("device_shares_host_memory", memory.size());
  const std::span<std::int64_t> stream =
      values.Elements("device_stream_overhead_ns", memory.size());
  const std::span<std::int64_t> wait = values.Elements("device_wait_overhead_ns", memory.size());
  std::vector<simulate::Device> devices;
  for (std::size_t d = 0; d < memory.size(); ++d) {
    devices.push_back(
        {Bytes{memory[d]}, shares[d] != 0, Nanoseconds{stream[d]}, Nanoseconds{wait[d]}});
  }
  return devices;
}

/// Channels and speed of each route, and the route of each pair of places.
void AddRoutes(const NamedValues& values, simulate::Problem* problem) {
  const std::size_t places = problem->devices.size() + 1, tensors = problem->tensors.size();
  problem->channels = static_cast<std::int32_t>(values.Integer("number_of_channels"));
  problem->route_channels =
      RowsOf(values, "channel_offsets", "channels", static_cast<std::size_t>(problem->channels));
  const std::span<std::int64_t> routes = values.Elements("route", places * places);
  problem->route = {places, places, simulate::kNone};
  problem->route.value.assign(routes.begin(), routes.end());
  for (std::int64_t r : routes) {
    TVM_SCHED_CHECK(r >= -1 && r < static_cast<std::int64_t>(problem->route_channels.size()),
                    IndexError)
        << "route " << r;
  }
  const std::size_t speeds = tensors == 0 ? 0 : values.Elements("transfer_ns").size() / tensors;
  problem->transfer_time = TimesOf(values, "transfer_ns", speeds, tensors);
  for (std::int64_t s : values.Elements("route_speed", problem->route_channels.size())) {
    TVM_SCHED_CHECK(s >= 0 && (tensors == 0 || s < static_cast<std::int64_t>(speeds)), IndexError)
        << "speed " << s;
    problem->route_speed.push_back(static_cast<std::int32_t>(s));
  }
}

/// A route of no channel and no time, for tensors that are there from the start.
void AddResidentRoute(simulate::Problem* problem) {
  const auto resident = [](const simulate::Tensor& tensor) { return tensor.resident; };
  if (std::ranges::none_of(problem->tensors, resident)) return;
  simulate::Matrix<Nanoseconds>& times = problem->transfer_time;
  problem->resident_route = static_cast<std::int32_t>(problem->route_channels.size());
  problem->route_channels.EndRow();
  problem->route_speed.push_back(static_cast<std::int32_t>(times.value.size() / times.columns));
  times.value.resize(times.value.size() + times.columns);
}

/// What operators use of each device's resources, by operator, device and resource, and
/// the pairs that were measured together.
simulate::Concurrency ConcurrencyOf(const NamedValues& values, const simulate::Problem& problem) {
  const std::size_t devices = problem.devices.size(), rows = problem.operators() * devices;
  const std::span<double> used = values.Elements<double>("utilisation");
  if (rows == 0 || used.empty()) return {};
  TVM_SCHED_CHECK(used.size() % rows == 0, ValueError)
      << "utilisation has " << used.size() << " elements, not a multiple of " << rows;
  const std::size_t resources = used.size() / rows;
  simulate::Concurrency result(values.Number("serial_share"), devices, resources,
                               {used.begin(), used.end()});
  const std::span<double> excess = values.Elements<double>("excess");
  const std::span<double> crowding = values.Elements<double>("crowding");
  TVM_SCHED_CHECK(excess.size() % resources == 0 && crowding.size() % rows == 0, ValueError)
      << "excess has " << excess.size() << " elements, not a multiple of " << resources
      << ", or crowding " << crowding.size() << ", not a multiple of " << rows;
  result.SetContention({excess.begin(), excess.end()}, {crowding.begin(), crowding.end()},
                       values.Number("factor"));
  const std::span<std::int64_t> threads = values.Elements("threads");
  if (!threads.empty()) {
    values.Elements("threads", devices);
    result.SetThreads({threads.begin(), threads.end()});
  }
  const std::span<std::int64_t> time = values.Elements("pair_ns");
  const std::span<std::int64_t> on = values.Elements("pair_device", time.size());
  const std::span<std::int64_t> first = values.Elements("pair_first", time.size());
  const std::span<std::int64_t> second = values.Elements("pair_second", time.size());
  for (std::size_t i = 0; i < time.size(); ++i) {
    const auto device = static_cast<std::int32_t>(on[i]);
    const auto a = static_cast<std::int32_t>(first[i]), b = static_cast<std::int32_t>(second[i]);
    result.AddPair(device, {a, 0, problem.operator_time(a, device)},
                   {b, 1, problem.operator_time(b, device)}, Nanoseconds{time[i]});
  }
  return result;
}

}  // namespace

simulate::Problem ProblemOf(const NamedValues::Values& arrays) {
  const NamedValues values("a problem", arrays);
  simulate::Problem problem;
  const std::size_t tensors = values.Elements("tensor_bytes").size();
  problem.inputs = RowsOf(values, "input_offsets", "inputs", tensors);
  problem.outputs = RowsOf(values, "output_offsets", "outputs", tensors);
  problem.tensors = TensorsOf(values, problem.outputs);
  problem.devices = DevicesOf(values);
  const std::size_t o = problem.operators(), d = problem.devices.size();
  TVM_SCHED_CHECK(problem.outputs.size() == o, ValueError)
      << "inputs and outputs have different numbers of rows";
  problem.operator_time = TimesOf(values, "operator_ns", o, d);
  problem.direct_time = TimesOf(values, "direct_ns", o, d);
  problem.host_read_time = TimesOf(values, "host_read_ns", o, d);
  AddRoutes(values, &problem);
  const std::span<std::int64_t> lags = values.Elements("lag_ns");
  TVM_SCHED_CHECK(lags.empty() || lags.size() == o, ValueError)
      << "lag_ns has one for each operator";
  for (std::int64_t lag : lags) problem.lag.push_back(Nanoseconds{lag});
  AddResidentRoute(&problem);
  problem.concurrency = ConcurrencyOf(values, problem);
  return problem;
}

}  // namespace tvm_sched
