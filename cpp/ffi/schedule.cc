// Makes and registers the object "tvm_sched.Schedule".
#include "schedule.h"

#include <array>
#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "arrays.h"
#include "events.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using simulate::Nanoseconds;
using simulate::TransferKind;

/*! \brief Errors of the core become Python's own kinds. */
template <typename Work>
auto Guard(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::out_of_range& error) {
    TVM_FFI_THROW(IndexError) << error.what();
  } catch (const std::overflow_error& error) {
    TVM_FFI_THROW(OverflowError) << error.what();
  }
  TVM_FFI_UNREACHABLE();
}

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
    schedule.transfers[i] = {static_cast<TransferKind>(x[i]), static_cast<int32_t>(x[nx + i]),
                             static_cast<int32_t>(x[2 * nx + i]),
                             static_cast<int32_t>(x[3 * nx + i]), x[4 * nx + i] != 0};
  }
  return schedule;
}

/*! \brief A table of `columns` numbers for each element of a range. */
template <typename Range, typename Numbers>
ffi::Tensor RowsOf(const Range& range, int64_t columns, Numbers numbers) {
  ffi::Tensor table = NewTensor({std::ssize(range), columns});
  auto* out = static_cast<int64_t*>(table.data_ptr());
  for (const auto& element : range) {
    for (int64_t number : numbers(element)) *out++ = number;
  }
  return table;
}

/*! \brief The same, transposed: a row for each number. */
template <typename Range, typename Numbers>
ffi::Tensor ColumnsOf(const Range& range, int64_t rows, Numbers numbers) {
  ffi::Tensor table = NewTensor({rows, std::ssize(range)});
  auto* out = static_cast<int64_t*>(table.data_ptr());
  const ptrdiff_t width = std::ssize(range);
  ptrdiff_t column = 0;
  for (const auto& element : range) {
    ptrdiff_t row = 0;
    for (int64_t number : numbers(element)) out[width * row++ + column] = number;
    ++column;
  }
  return table;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::ObjectDef<ScheduleObj>(ffi::reflection::init(false))
      .def("placements", &ScheduleObj::Placements)
      .def("transfers", &ScheduleObj::Transfers)
      .def("simulate", &ScheduleObj::Simulate)
      .def("violations", &ScheduleObj::Violations)
      .def("holdings", &ScheduleObj::Holdings)
      .def("memory_profile", &ScheduleObj::MemoryProfile)
      .def("threads", &ScheduleObj::Threads);
}

}  // namespace

ScheduleObj::ScheduleObj(const ProblemObj* problem, simulate::Schedule schedule)
    : kept_(ffi::GetRef<ffi::ObjectRef>(problem)),
      problem_(problem->problem_),
      schedule_(std::move(schedule)) {}

ScheduleObj::ScheduleObj(const ProblemObj* problem, TensorView placements, TensorView transfers)
    : ScheduleObj(problem, ScheduleOf(placements, transfers)) {}

ScheduleObj::ScheduleObj(const ProblemObj* problem, TensorView sequence)
    : ScheduleObj(problem, search::ScheduleOf(SequenceOf(problem->EventInstance(), sequence))) {}

ffi::Tensor ScheduleObj::Placements() const {
  return ColumnsOf(schedule_.placements, 5, [](const simulate::Placement& p) {
    return std::array<int64_t, 5>{p.op, p.device, p.direct, p.stream, p.stage};
  });
}

ffi::Tensor ScheduleObj::Transfers() const {
  return ColumnsOf(schedule_.transfers, 5, [](const simulate::Transfer& x) {
    return std::array<int64_t, 5>{static_cast<int64_t>(x.kind), x.item, x.source, x.device,
                                  x.evict};
  });
}

int64_t ScheduleObj::Simulate(TensorView times, TensorView peak) const {
  const size_t events = schedule_.events();
  const std::span<int64_t> out = Elements("times", times, 2 * events);
  const std::span<int64_t> held = Elements("peak", peak, problem_.devices.size());
  const simulate::Times& found = Feasible().times;
  for (size_t e = 0; e < events; ++e) {
    out[e] = found.start[e].count;
    out[events + e] = found.end[e].count;
  }
  const std::vector<simulate::Holding> holdings = FindHoldings();
  const auto bytes = Guard([&] { return PeakMemory(problem_, holdings); });
  for (size_t d = 0; d < held.size(); ++d) held[d] = bytes[d].count;
  return found.latency.count;
}

ffi::Array<ffi::Array<int64_t>> ScheduleObj::Violations(int64_t limit) const {
  ffi::Array<ffi::Array<int64_t>> rows;
  for (const simulate::Violation& v : Simulation().violations) {
    if (std::ssize(rows) == limit) break;
    ffi::Array<int64_t> row{static_cast<int64_t>(v.rule), v.op, v.tensor, v.device, v.other};
    for (simulate::EventId event : v.cycle) row.push_back(event);
    rows.push_back(row);
  }
  return rows;
}

ffi::Tensor ScheduleObj::Holdings() const {
  return RowsOf(FindHoldings(), 4, [](const simulate::Holding& h) {
    return std::array<int64_t, 4>{h.tensor, h.device, h.begin.count, h.end.count};
  });
}

ffi::Tensor ScheduleObj::MemoryProfile() const {
  const std::vector<simulate::Holding> holdings = FindHoldings();
  std::vector<std::array<int64_t, 3>> rows;
  int64_t device = 0;
  for (const auto& levels : Guard([&] { return simulate::MemoryProfile(problem_, holdings); })) {
    for (const simulate::Level& level : levels)
      rows.push_back({device, level.time.count, level.held.count});
    ++device;
  }
  return RowsOf(rows, 3, [](const auto& row) { return row; });
}

ffi::Tensor ScheduleObj::Threads() const {
  simulate::CheckIndices(problem_, schedule_);
  const std::vector<simulate::Placement>& placements = schedule_.placements;
  std::vector<int64_t> threads(placements.size());
  std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> together;
  for (size_t p = 0; p < placements.size(); ++p) {
    const int64_t stage = placements[p].stage;
    together[{placements[p].device, stage > 0 ? stage : -1 - static_cast<int64_t>(p)}].push_back(p);
  }
  for (const auto& [place, members] : together) {
    const auto device = static_cast<simulate::DeviceId>(place.first);
    if (!problem_.concurrency.has_threads(device)) continue;
    std::vector<simulate::Member> stage;
    for (size_t p : members) {
      const simulate::OperatorId op = placements[p].op;
      stage.push_back({op, placements[p].stream, problem_.operator_time(op, device)});
    }
    const std::vector<int32_t> found = problem_.concurrency.ThreadsOf(device, stage);
    for (size_t i = 0; i < members.size(); ++i) threads[members[i]] = found[i];
  }
  return NewRow<int64_t>(threads);
}

const simulate::Simulation& ScheduleObj::Simulation() const {
  std::call_once(simulated_, [this] {
    simulation_ = std::make_unique<simulate::Simulation>(Guard([this] {
      return simulate::Simulate(problem_, schedule_, std::numeric_limits<size_t>::max());
    }));
  });
  return *simulation_;
}

const simulate::Simulation& ScheduleObj::Feasible() const {
  const simulate::Simulation& simulation = Simulation();
  TVM_FFI_CHECK(simulation.violations.empty(), ValueError)
      << simulation.violations.front().ToString();
  return simulation;
}

std::vector<simulate::Holding> ScheduleObj::FindHoldings() const {
  const simulate::Simulation& simulation = Feasible();
  return Guard([&] { return simulate::FindHoldings(problem_, schedule_, simulation); });
}

}  // namespace tvm_sched
