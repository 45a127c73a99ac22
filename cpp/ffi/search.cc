// The algorithms that construct schedules of a problem, its streams and launch orders.
#include <algorithm>
#include <cmath>
#include <vector>

#include "arrays.h"
#include "problem.h"
#include "schedule.h"
#include "search/annealing.h"
#include "search/heft.h"
#include "search/hios.h"
#include "search/ios.h"
#include "search/partial_schedule.h"
#include "search/sequence_timer.h"
#include "search/streams.h"

namespace tvm_sched {

namespace ffi = tvm::ffi;

namespace {

/*! \brief Rows of operator, device, stream in launch order; each operator stands once. */
search::Launches LaunchesOf(const simulate::Problem& problem, std::span<const int64_t> rows) {
  const size_t count = problem.operators();
  search::Launches launches{std::vector<simulate::OperatorId>(count),
                            std::vector<simulate::DeviceId>(count), std::vector<int32_t>(count)};
  std::vector<bool> seen(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t op = rows[i], device = rows[count + i];
    TVM_FFI_CHECK(op >= 0 && op < static_cast<int64_t>(count) && !seen[op] && device >= 0 &&
                      device < static_cast<int64_t>(problem.devices.size()),
                  ValueError)
        << "launches names operator " << op << " on device " << device << " wrongly";
    seen[op] = true;
    launches.order[i] = static_cast<int32_t>(op);
    launches.device[op] = static_cast<int32_t>(device);
    launches.stream[op] = static_cast<int32_t>(rows[2 * count + i]);
  }
  return launches;
}

search::Progress ProgressOf(const ffi::Function& progress) {
  return [progress](int64_t done, int64_t total) { progress(done, total); };
}

}  // namespace

ProblemObj::Found ProblemObj::Complete(simulate::Schedule schedule) const {
  if (schedule.placements.size() < problem_.operators()) return std::nullopt;
  return ffi::ObjectRef(ffi::make_object<ScheduleObj>(this, std::move(schedule)));
}

ProblemObj::Found ProblemObj::ListSchedule(int64_t method) const {
  return Complete(
      search::ListSchedule(EventInstance(), Graph(), static_cast<search::ListMethod>(method)));
}

ProblemObj::Found ProblemObj::Hios(bool by_paths, int64_t window, const Function& progress) const {
  const search::TaskGraph& graph = Graph();
  const search::Progress report = ProgressOf(progress);
  const auto device = by_paths ? MapLongestPaths(graph, report) : MapByRecords(graph, report);
  const search::Stages stages =
      GroupNeighbours(graph, problem_.concurrency, device, static_cast<int>(window), report);
  search::PartialSchedule placed(EventInstance(), search::Growth::Plain());
  int32_t number = 0;
  for (const auto& [on, stage] : InOrder(graph, problem_.concurrency, stages)) {
    std::vector<int32_t> streams(stage.size());
    for (size_t i = 0; i < streams.size(); ++i) streams[i] = static_cast<int32_t>(i);
    if (placed.PlaceStage(stage, streams, on, ++number) == simulate::kNever) return std::nullopt;
  }
  return Complete(placed.Schedule());
}

ProblemObj::Found ProblemObj::Ios(int64_t device, TensorView limits,
                                  const Function& progress) const {
  const std::span<int64_t> given = Elements("limits", limits, 4);
  const search::TaskGraph& graph = Graph();
  const auto on = static_cast<simulate::DeviceId>(device);
  const search::IosAnswer answer =
      SolveStages(graph, problem_.concurrency, on,
                  {static_cast<int>(given[0]), static_cast<int>(given[1]),
                   static_cast<int>(given[2]), given[3]},
                  ProgressOf(progress));
  given[0] = answer.operators;
  given[1] = answer.states;
  given[2] = answer.estimate > 0 ? std::llround(std::log2(answer.estimate)) : answer.profiled;
  given[3] = answer.profile_time.count;
  search::PartialSchedule placed(EventInstance(), search::Growth::Plain());
  int32_t number = 0;
  for (const search::GroupedStage& stage : answer.stages) {
    if (placed.PlaceStage(stage.ops, stage.group, on, ++number) == simulate::kNever)
      return std::nullopt;
  }
  return Complete(placed.Schedule());
}

ProblemObj::Found ProblemObj::Anneal(TensorView sequence, TensorView effort,
                                     const Function& progress) const {
  const std::span<int64_t> rows = Elements("sequence", sequence, 3 * problem_.operators());
  const std::span<int64_t> given = Elements("effort", effort, 4);
  search::StageSequence start;
  start.device.resize(problem_.operators());
  for (size_t i = 0; i < rows.size(); i += 3) {
    start.order.push_back(static_cast<int32_t>(rows[i]));
    start.device.at(rows[i]) = static_cast<int32_t>(rows[i + 1]);
    start.joins.push_back(rows[i + 2] != 0);
  }
  const search::TaskGraph& graph = Graph();
  const search::StageSequence best = search::Anneal(
      EventInstance(), graph, start,
      {given[0], static_cast<uint64_t>(given[1]), given[2], static_cast<int>(given[3])},
      [&](int64_t done, int64_t total) { return progress(done, total).cast<double>(); });
  search::PartialSchedule placed(EventInstance(), search::Growth::Plain());
  if (!search::Append(best, &placed)) return std::nullopt;
  return Complete(placed.Schedule());
}

void ProblemObj::AllocateStreams(int64_t method, TensorView launches) const {
  const size_t count = problem_.operators();
  const std::span<int64_t> rows = Elements("launches", launches, 3 * count);
  search::Launches found = LaunchesOf(problem_, rows);
  search::AllocateStreams(Graph(), static_cast<search::Allocation>(method), &found);
  for (size_t i = 0; i < count; ++i) rows[2 * count + i] = found.stream[found.order[i]];
}

int64_t ProblemObj::CountSynchronizations(TensorView launches) const {
  const size_t count = problem_.operators();
  return search::CountSynchronizations(
      Graph(), LaunchesOf(problem_, Elements("launches", launches, 3 * count)));
}

void ProblemObj::OrderLaunches(int64_t method, TensorView demand, TensorView memory_bound,
                               TensorView order) const {
  const size_t count = problem_.operators();
  const std::span<int64_t> given = Elements("demand", demand, count);
  const std::vector<double> demands(given.begin(), given.end());
  const auto found = search::OrderLaunches(Graph(), static_cast<search::LaunchOrder>(method),
                                           demands, Elements("memory_bound", memory_bound, count));
  std::ranges::copy(found, Elements("order", order, count).begin());
}

}  // namespace tvm_sched
