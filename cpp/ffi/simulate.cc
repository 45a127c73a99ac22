// What the simulator says of a problem's schedules.
#include "simulate/simulate.h"

#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "arrays.h"
#include "problem.h"

namespace tvm_sched {

namespace ffi = tvm::ffi;

namespace {

/*! \brief Errors of the core become Python's own kinds. */
template <typename Work>
auto Guard(Work work) -> decltype(work()) {
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

}  // namespace

int64_t ProblemObj::Simulate(ffi::TensorView placements, ffi::TensorView transfers,
                             ffi::TensorView times, ffi::TensorView peak) const {
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

ffi::Array<ffi::Array<int64_t>> ProblemObj::Violations(ffi::TensorView placements,
                                                       ffi::TensorView transfers,
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

void ProblemObj::CountThreads(ffi::TensorView placements, ffi::TensorView threads) const {
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

ffi::Tensor ProblemObj::Holdings(ffi::TensorView placements, ffi::TensorView transfers) const {
  const std::vector<simulate::Holding> holdings = HoldingsOf(placements, transfers);
  ffi::Tensor table = NewTensor({static_cast<int64_t>(holdings.size()), 4});
  auto* row = static_cast<int64_t*>(table.data_ptr());
  for (const simulate::Holding& h : holdings) {
    for (int64_t value : {int64_t{h.tensor}, int64_t{h.device}, h.begin.count, h.end.count})
      *row++ = value;
  }
  return table;
}

ffi::Tensor ProblemObj::MemoryProfile(ffi::TensorView placements, ffi::TensorView transfers) const {
  const std::vector<simulate::Holding> holdings = HoldingsOf(placements, transfers);
  const auto profile = Guard([&] { return simulate::MemoryProfile(problem_, holdings); });
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

std::vector<simulate::Holding> ProblemObj::HoldingsOf(const TensorView& placements,
                                                      const TensorView& transfers) const {
  const simulate::Schedule schedule = ScheduleOf(placements, transfers);
  return Guard([&] {
    return FindHoldings(problem_, schedule, simulate::SimulateOrThrow(problem_, schedule));
  });
}

}  // namespace tvm_sched
