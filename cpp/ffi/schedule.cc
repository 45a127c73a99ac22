// Makes and registers the object "tvm_sched.Schedule".
#include "ffi/schedule.h"

#include <array>
#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "ffi/problem.h"
#include "ffi/records.h"
#include "runtime/throw.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using simulate::Nanoseconds;
using simulate::TransferKind;

/// Errors of the core become Python's own kinds.
template <typename Work>
auto Guard(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::out_of_range& error) {
    TVM_SCHED_THROW(IndexError) << error.what();
  } catch (const std::overflow_error& error) {
    TVM_SCHED_THROW(OverflowError) << error.what();
  }
}

simulate::Schedule ScheduleOf(const Integers& placements, const Integers& transfers) {
  const std::span<std::int64_t> p = Elements("placements", placements),
                                x = Elements("transfers", transfers);
  TVM_SCHED_CHECK(p.size() % 5 == 0 && x.size() % 5 == 0, ValueError)
      << "placements has 5 rows (operator, device, direct, stream, stage), transfers has 5 (kind, "
         "item, source, device, evict)";
  const std::size_t np = p.size() / 5, nx = x.size() / 5;
  simulate::Schedule schedule;
  schedule.placements.resize(np);
  schedule.transfers.resize(nx);
  for (std::size_t i = 0; i < np; ++i) {
    schedule.placements[i] = {static_cast<std::int32_t>(p[i]), static_cast<std::int32_t>(p[np + i]),
                              p[2 * np + i] != 0, static_cast<std::int32_t>(p[3 * np + i]),
                              static_cast<std::int32_t>(p[4 * np + i])};
  }
  for (std::size_t i = 0; i < nx; ++i) {
    schedule.transfers[i] = {static_cast<TransferKind>(x[i]), static_cast<std::int32_t>(x[nx + i]),
                             static_cast<std::int32_t>(x[2 * nx + i]),
                             static_cast<std::int32_t>(x[3 * nx + i]), x[4 * nx + i] != 0};
  }
  return schedule;
}

/// A table with a column for each element of a range, and `rows` numbers of each.
template <typename Range, typename Numbers>
ffi::Tensor ColumnsOf(const Range& range, std::int64_t rows, Numbers numbers) {
  ffi::Tensor table = NewTensor({rows, std::ssize(range)});
  auto* out = static_cast<std::int64_t*>(table.data_ptr());
  const std::ptrdiff_t width = std::ssize(range);
  std::ptrdiff_t column = 0;
  for (const auto& element : range) {
    std::ptrdiff_t row = 0;
    for (std::int64_t number : numbers(element)) out[width * row++ + column] = number;
    ++column;
  }
  return table;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  TVM_SCHED_RESULT(SimulationObj, start_ns, end_ns, peak_memory, latency_ns);
  refl::ObjectDef<BrokenRuleObj>(refl::init(false))
      .def_ro("rule", &BrokenRuleObj::rule)
      .def_ro("operator", &BrokenRuleObj::op)
      .def_ro("tensor", &BrokenRuleObj::tensor)
      .def_ro("device", &BrokenRuleObj::device)
      .def_ro("other", &BrokenRuleObj::other)
      .def_ro("cycle", &BrokenRuleObj::cycle);
  TVM_SCHED_METHODS(ScheduleObj, (placements, Placements), (transfers, Transfers),
                    (simulate, Simulate), (violations, Violations), (holdings, Holdings),
                    (memory_profile, MemoryProfile), (threads, Threads));
}

}  // namespace

ScheduleObj::ScheduleObj(const ProblemObj* problem, simulate::Schedule schedule)
    : kept_(ffi::GetRef<ffi::ObjectRef>(problem)),
      problem_(problem->problem()),
      schedule_(std::move(schedule)) {}

ScheduleObj::ScheduleObj(const ProblemObj* problem, Integers placements, Integers transfers)
    : ScheduleObj(problem, ScheduleOf(placements, transfers)) {}

ffi::Tensor ScheduleObj::Placements() const {
  return ColumnsOf(schedule_.placements, 5, [](const simulate::Placement& p) {
    return std::array<std::int64_t, 5>{p.op, p.device, p.direct, p.stream, p.stage};
  });
}

ffi::Tensor ScheduleObj::Transfers() const {
  return ColumnsOf(schedule_.transfers, 5, [](const simulate::Transfer& x) {
    return std::array<std::int64_t, 5>{static_cast<std::int64_t>(x.kind), x.item, x.source,
                                       x.device, x.evict};
  });
}

ffi::Arc<SimulationObj> ScheduleObj::Simulate() const {
  const simulate::Times& times = Feasible().times;
  const std::vector<simulate::Holding> holdings = FindHoldings();
  const auto simulation = ffi::make_arc<SimulationObj>();
  simulation->start_ns = NewRowOfCounts(times.start);
  simulation->end_ns = NewRowOfCounts(times.end);
  simulation->peak_memory = NewRowOfCounts(Guard([&] { return PeakMemory(problem_, holdings); }));
  simulation->latency_ns = times.latency.count;
  return simulation;
}

ffi::Array<ffi::Arc<BrokenRuleObj>> ScheduleObj::Violations(std::int64_t limit) const {
  ffi::Array<ffi::Arc<BrokenRuleObj>> broken;
  for (const simulate::Violation& v : Simulated().violations) {
    if (std::ssize(broken) == limit) break;
    const auto rule = ffi::make_arc<BrokenRuleObj>();
    rule->rule = simulate::RuleName(v.rule);
    rule->op = v.op;
    rule->tensor = v.tensor;
    rule->device = v.device;
    rule->other = v.other;
    for (simulate::EventId event : v.cycle) rule->cycle.push_back(event);
    broken.push_back(rule);
  }
  return broken;
}

ffi::Tensor ScheduleObj::Holdings() const {
  return NewTable(FindHoldings(), 4, [](const simulate::Holding& h) {
    return std::array<std::int64_t, 4>{h.tensor, h.device, h.begin.count, h.end.count};
  });
}

ffi::Tensor ScheduleObj::MemoryProfile() const {
  const std::vector<simulate::Holding> holdings = FindHoldings();
  std::vector<std::array<std::int64_t, 3>> rows;
  std::int64_t device = 0;
  for (const auto& levels : Guard([&] { return simulate::MemoryProfile(problem_, holdings); })) {
    for (const simulate::Level& level : levels)
      rows.push_back({device, level.time.count, level.held.count});
    ++device;
  }
  return NewTable(rows, 3, [](const auto& row) { return row; });
}

ffi::Tensor ScheduleObj::Threads() const {
  simulate::CheckIndices(problem_, schedule_);
  const std::vector<simulate::Placement>& placements = schedule_.placements;
  std::vector<std::int64_t> threads(placements.size());
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>> together;
  for (std::size_t p = 0; p < placements.size(); ++p) {
    const std::int64_t stage = placements[p].stage;
    together[{placements[p].device, stage > 0 ? stage : -1 - static_cast<std::int64_t>(p)}]
        .push_back(p);
  }
  for (const auto& [place, members] : together) {
    const auto device = static_cast<simulate::DeviceId>(place.first);
    if (!problem_.concurrency.has_threads(device)) continue;
    std::vector<simulate::Member> stage;
    for (std::size_t p : members) {
      const simulate::OperatorId op = placements[p].op;
      stage.push_back({op, placements[p].stream, problem_.operator_time(op, device)});
    }
    const std::vector<std::int32_t> found = problem_.concurrency.ThreadsOf(device, stage);
    for (std::size_t i = 0; i < members.size(); ++i) threads[members[i]] = found[i];
  }
  return NewRow<std::int64_t>(threads);
}

const simulate::Simulation& ScheduleObj::Simulated() const {
  std::call_once(simulated_, [this] {
    simulation_ = std::make_unique<simulate::Simulation>(Guard([this] {
      return simulate::Simulate(problem_, schedule_, std::numeric_limits<std::size_t>::max());
    }));
  });
  return *simulation_;
}

const simulate::Simulation& ScheduleObj::Feasible() const {
  const simulate::Simulation& simulation = Simulated();
  TVM_SCHED_CHECK(simulation.violations.empty(), ValueError)
      << simulation.violations.front().ToString();
  return simulation;
}

std::vector<simulate::Holding> ScheduleObj::FindHoldings() const {
  const simulate::Simulation& simulation = Feasible();
  return Guard([&] { return simulate::FindHoldings(problem_, schedule_, simulation); });
}

}  // namespace tvm_sched
