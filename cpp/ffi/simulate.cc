// Binds the simulator: "tvm_sched.make_simulator" keeps a problem and gives the functions that
// price its schedules.
#include "simulate/simulate.h"

#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "event_search.h"
#include "search.h"
#include "simulate/memory.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using simulate::Bytes;
using simulate::Nanoseconds;

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

/*! \brief The functions that Python calls on one problem. Errors of the core become Python's own
 * kinds. */
class BoundSimulator {
 public:
  explicit BoundSimulator(std::shared_ptr<const simulate::Problem> problem)
      : kept_(std::move(problem)), problem_(*kept_) {}

  const simulate::Problem& problem() const { return problem_; }

  /*! \brief Fills `times` (starts, then ends) and `peak` (by device); returns the latency in
   * nanoseconds. */
  int64_t Run(ffi::TensorView placements, ffi::TensorView transfers, ffi::TensorView times,
              ffi::TensorView peak) const {
    const simulate::Schedule schedule = ScheduleOf(placements, transfers);
    const size_t events = schedule.events();
    const std::span<int64_t> out = Elements("times", times, 2 * events);
    const simulate::Simulation result =
        Guard([&] { return simulate::SimulateOrThrow(problem_, schedule); });
    for (size_t e = 0; e < events; ++e) {
      out[e] = result.times.start[e].count;
      out[events + e] = result.times.end[e].count;
    }
    const std::span<int64_t> held = Elements("peak", peak, problem_.devices.size());
    const auto bytes =
        Guard([&] { return PeakMemory(problem_, FindHoldings(problem_, schedule, result)); });
    for (size_t d = 0; d < held.size(); ++d) held[d] = bytes[d].count;
    return result.times.latency.count;
  }

  /*! \brief A list for each broken rule: rule, operator, tensor, device, other, then the events of
   * a cycle. */
  ffi::Array<ffi::Array<int64_t>> Violations(ffi::TensorView placements, ffi::TensorView transfers,
                                             int64_t limit) const {
    const simulate::Schedule schedule = ScheduleOf(placements, transfers);
    const simulate::Simulation result =
        Guard([&] { return simulate::Simulate(problem_, schedule, static_cast<size_t>(limit)); });
    ffi::Array<ffi::Array<int64_t>> rows;
    for (const simulate::Violation& v : result.violations) {
      ffi::Array<int64_t> row{static_cast<int64_t>(v.rule), v.op, v.tensor, v.device, v.other};
      for (simulate::EventId event : v.cycle) row.push_back(event);
      rows.push_back(row);
    }
    return rows;
  }

  /*! \brief Fills `threads`, by placement: those that compute it where its device has threads, else
   * 0. */
  void Threads(ffi::TensorView placements, ffi::TensorView threads) const {
    const std::span<int64_t> rows = Elements("placements", placements);
    const size_t count = rows.size() / 5;
    const std::span<int64_t> out = Elements("threads", threads, count);
    std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> together;
    for (size_t p = 0; p < count; ++p) {
      const int64_t stage = rows[4 * count + p];
      together[{rows[count + p], stage > 0 ? stage : -1 - static_cast<int64_t>(p)}].push_back(p);
    }
    for (const auto& [place, members] : together) {
      const auto device = static_cast<simulate::DeviceId>(place.first);
      std::vector<simulate::Member> stage;
      for (size_t p : members) {
        const auto op = static_cast<int32_t>(rows[p]);
        stage.push_back(
            {op, static_cast<int32_t>(rows[3 * count + p]), problem_.operator_time(op, device)});
      }
      if (!problem_.concurrency.has_threads(device)) continue;
      const std::vector<int32_t> found = problem_.concurrency.ThreadsOf(device, stage);
      for (size_t i = 0; i < members.size(); ++i) out[members[i]] = found[i];
    }
  }

  /*! \brief Rows of tensor, device, begin, end: what lies where, from when to when. */
  ffi::Tensor Holdings(ffi::TensorView placements, ffi::TensorView transfers) const {
    const std::vector<simulate::Holding> holdings = HoldingsOf(placements, transfers);
    ffi::Tensor table = NewTensor({static_cast<int64_t>(holdings.size()), 4});
    auto* row = static_cast<int64_t*>(table.data_ptr());
    for (const simulate::Holding& h : holdings) {
      for (int64_t value : {int64_t{h.tensor}, int64_t{h.device}, h.begin.count, h.end.count})
        *row++ = value;
    }
    return table;
  }

  /*! \brief Rows of device, time, bytes held from then on; by device, then by time. */
  ffi::Tensor Profile(ffi::TensorView placements, ffi::TensorView transfers) const {
    const std::vector<simulate::Holding> holdings = HoldingsOf(placements, transfers);
    const auto profile = Guard([&] { return MemoryProfile(problem_, holdings); });
    size_t levels = 0;
    for (const auto& device : profile) levels += device.size();
    ffi::Tensor table = NewTensor({static_cast<int64_t>(levels), 3});
    auto* row = static_cast<int64_t*>(table.data_ptr());
    for (size_t d = 0; d < profile.size(); ++d) {
      for (const simulate::Level& level : profile[d]) {
        for (int64_t value : {static_cast<int64_t>(d), level.time.count, level.held.count})
          *row++ = value;
      }
    }
    return table;
  }

 private:
  std::vector<simulate::Holding> HoldingsOf(ffi::TensorView placements,
                                            ffi::TensorView transfers) const {
    const simulate::Schedule schedule = ScheduleOf(placements, transfers);
    return Guard([&] {
      return FindHoldings(problem_, schedule, simulate::SimulateOrThrow(problem_, schedule));
    });
  }

  template <typename Work>
  static auto Guard(Work work) -> decltype(work()) {
    try {
      return work();
    } catch (const simulate::BrokenRule& error) {
      TVM_FFI_THROW(ValueError) << error.what();
    } catch (const std::out_of_range& error) {
      TVM_FFI_THROW(IndexError) << error.what();
    } catch (const std::overflow_error& error) {
      TVM_FFI_THROW(OverflowError) << error.what();
    }
    TVM_FFI_UNREACHABLE();
  }

  const std::shared_ptr<const simulate::Problem> kept_;
  const simulate::Problem& problem_;
};

/*! \brief Tensors from rows of size, stays (0 or 1); producers from the operators' outputs. */
std::vector<simulate::Tensor> TensorsOf(const ffi::TensorView& tensors,
                                        const simulate::Rows<int32_t>& outputs) {
  const std::span<int64_t> elements = Elements("tensors", tensors);
  std::vector<simulate::Tensor> result(elements.size() / 2);
  for (size_t t = 0; t < result.size(); ++t) {
    result[t].size = Bytes{elements[2 * t]};
    result[t].stays = elements[2 * t + 1] != 0;
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    for (int32_t t : outputs[o]) result[t].producer = static_cast<int32_t>(o);
  }
  return result;
}

/*! \brief Numbers by operator, device and resource; rows of device, operator, operator,
 * nanoseconds.
 */
simulate::Concurrency ConcurrencyOf(const simulate::Problem& problem, double serial_share,
                                    const ffi::TensorView& utilisation,
                                    const ffi::TensorView& pairs, const ffi::TensorView& threads) {
  const size_t rows = problem.operators() * problem.devices.size();
  const auto numbers = static_cast<size_t>(utilisation.numel());
  if (rows == 0 || numbers == 0) return {};
  const DLDataType dtype = utilisation.dtype();
  TVM_FFI_CHECK(dtype.code == kDLFloat && dtype.bits == 64 && utilisation.IsContiguous() &&
                    numbers % rows == 0,
                ValueError)
      << "utilisation holds 64-bit numbers by operator, device and resource";
  const auto* data = reinterpret_cast<const double*>(
      static_cast<const char*>(utilisation.data_ptr()) + utilisation.byte_offset());
  simulate::Concurrency result(serial_share, problem.devices.size(), numbers / rows,
                               {data, data + numbers});
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

/*! \brief Makes the functions of a problem: run, violations, holdings, profile, what makes those of
 * event_search.h, threads, then those of search.h. */
ffi::Array<ffi::Function> MakeSimulator(ffi::TensorView input_offsets, ffi::TensorView inputs,
                                        ffi::TensorView output_offsets, ffi::TensorView outputs,
                                        ffi::TensorView tensors, ffi::TensorView devices,
                                        ffi::TensorView operator_ns, ffi::TensorView direct_ns,
                                        ffi::TensorView host_read_ns, ffi::TensorView route,
                                        ffi::TensorView channel_offsets, ffi::TensorView channels,
                                        ffi::TensorView route_speed, ffi::TensorView transfer_ns,
                                        int64_t number_of_channels, double serial_share,
                                        ffi::TensorView utilisation, ffi::TensorView pairs,
                                        ffi::TensorView threads) {
  simulate::Problem problem;
  const size_t tensor_count = Elements("tensors", tensors).size() / 2;
  problem.inputs = RowsOf("inputs", input_offsets, inputs, tensor_count);
  problem.outputs = RowsOf("outputs", output_offsets, outputs, tensor_count);
  problem.tensors = TensorsOf(tensors, problem.outputs);
  const std::span<int64_t> device = Elements("devices", devices);
  for (size_t i = 0; i + 1 < device.size(); i += 2) {
    problem.devices.push_back({Bytes{device[i]}, device[i + 1] != 0});
  }
  const size_t o = problem.operators(), d = problem.devices.size();
  TVM_FFI_CHECK(problem.outputs.size() == o, ValueError)
      << "inputs and outputs have different numbers of rows";
  problem.operator_time = TimesOf("operator_ns", operator_ns, o, d);
  problem.direct_time = TimesOf("direct_ns", direct_ns, o, d);
  problem.host_read_time = TimesOf("host_read_ns", host_read_ns, o, d);
  problem.channels = static_cast<int32_t>(number_of_channels);
  problem.route_channels = RowsOf("channels", channel_offsets, channels, number_of_channels);
  const std::span<int64_t> routes = Elements("route", route, (d + 1) * (d + 1));
  problem.route = {d + 1, d + 1, simulate::kNone};
  problem.route.value.assign(routes.begin(), routes.end());
  for (int64_t r : routes) {
    TVM_FFI_CHECK(r >= -1 && r < static_cast<int64_t>(problem.route_channels.size()), IndexError)
        << "route " << r;
  }
  const size_t speeds =
      tensor_count == 0 ? 0 : Elements("transfer_ns", transfer_ns).size() / tensor_count;
  problem.transfer_time = TimesOf("transfer_ns", transfer_ns, speeds, tensor_count);
  for (int64_t s : Elements("route_speed", route_speed, problem.route_channels.size())) {
    TVM_FFI_CHECK(s >= 0 && (tensor_count == 0 || s < static_cast<int64_t>(speeds)), IndexError)
        << "speed " << s;
    problem.route_speed.push_back(static_cast<int32_t>(s));
  }
  problem.concurrency = ConcurrencyOf(problem, serial_share, utilisation, pairs, threads);
  const auto kept = std::make_shared<const simulate::Problem>(std::move(problem));
  auto bound = std::make_shared<const BoundSimulator>(kept);
  using View = ffi::TensorView;
  ffi::Array<ffi::Function> functions = {
      ffi::Function::FromTyped(
          [bound](View p, View x, View times, View peak) { return bound->Run(p, x, times, peak); }),
      ffi::Function::FromTyped(
          [bound](View p, View x, int64_t limit) { return bound->Violations(p, x, limit); }),
      ffi::Function::FromTyped([bound](View p, View x) { return bound->Holdings(p, x); }),
      ffi::Function::FromTyped([bound](View p, View x) { return bound->Profile(p, x); }),
      ffi::Function::FromTyped([bound]() { return BindSearch(bound->problem()); }),
      ffi::Function::FromTyped([bound](View p, View threads) { bound->Threads(p, threads); }),
  };
  for (const ffi::Function& function : SearchFunctions(kept)) functions.push_back(function);
  return functions;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("tvm_sched.make_simulator", MakeSimulator);
}

}  // namespace
}  // namespace tvm_sched
