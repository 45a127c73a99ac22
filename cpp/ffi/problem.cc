#include "ffi/problem.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ffi/events.h"
#include "ffi/local_search.h"
#include "ffi/names.h"
#include "ffi/partial_schedule.h"
#include "ffi/problem_arrays.h"
#include "ffi/records.h"
#include "runtime/throw.h"
#include "search/annealing.h"
#include "search/heft.h"
#include "search/hios.h"
#include "search/ios.h"
#include "search/launches.h"
#include "search/list_schedule.h"
#include "search/partial_schedule.h"
#include "search/sequence_timer.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;

TVM_FFI_STATIC_INIT_BLOCK() {
  TVM_SCHED_SETTINGS(IosLimitsObj, groups, group_size, block, states);
  TVM_SCHED_RESULT(IosResultObj, schedule, too_many_states, block_operators, log2_states,
                   profiled_stages, profiled_ns);
  TVM_SCHED_SETTINGS(AnnealingEffortObj, operators, seed, goal_ns, stage_operators);
  TVM_SCHED_RESULT(ConstructedSequenceObj, events, latency_ns);
  TVM_SCHED_METHODS(ProblemObj, (schedule, Schedule), (schedule_of_sequence, ScheduleOfSequence),
                    (least_pair_ratio, LeastPairRatio), (list_schedule, ListSchedule), (hios, Hios),
                    (ios, Ios), (anneal, Anneal), (allocate_streams, AllocateStreams),
                    (count_synchronizations, CountSynchronizations),
                    (order_launches, OrderLaunches), (construct, Construct), (improve, Improve),
                    (partial_schedule, PartialSchedule))
      .def_static("make", &ProblemObj::Make);
}

/// Operators in launch order with their devices, each operator once; all on stream 0.
search::Launches LaunchesOf(const simulate::Problem& problem, const Integers& operators,
                            const Integers& devices) {
  const std::size_t count = problem.operators();
  const std::span<std::int64_t> order = Elements("operators", operators, count),
                                where = Elements("devices", devices, count);
  search::Launches launches{std::vector<simulate::OperatorId>(count),
                            std::vector<simulate::DeviceId>(count),
                            std::vector<std::int32_t>(count)};
  std::vector<bool> seen(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t op = order[i], device = where[i];
    TVM_SCHED_CHECK(op >= 0 && op < static_cast<std::int64_t>(count) && !seen[op] && device >= 0 &&
                        device < static_cast<std::int64_t>(problem.devices.size()),
                    ValueError)
        << "launch " << i << " names operator " << op << " on device " << device
        << "; each operator stands once, on a device of the problem";
    seen[op] = true;
    launches.order[i] = static_cast<std::int32_t>(op);
    launches.device[op] = static_cast<std::int32_t>(device);
  }
  return launches;
}

search::Progress ProgressOf(const ffi::Function& progress) {
  return [progress](std::int64_t done, std::int64_t total) { progress(done, total); };
}

/// A choice of devices for each row of `allowed`.
std::vector<search::Choice> ChoicesOf(std::size_t devices, const Integers& allowed,
                                      const Integers& direct, const Integers& copy_percent) {
  const std::span<std::int64_t> with_direct = Elements("direct", direct);
  const std::span<std::int64_t> cells = Elements("allowed", allowed, with_direct.size() * devices);
  const std::span<std::int64_t> percent =
      Elements("copy_percent", copy_percent, with_direct.size());
  std::vector<search::Choice> choices;
  for (std::size_t c = 0; c < with_direct.size(); ++c) {
    search::Choice choice{{}, with_direct[c] != 0, static_cast<double>(percent[c]) / 100};
    for (std::size_t d = 0; d < devices; ++d) choice.device.push_back(cells[c * devices + d] != 0);
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace

ffi::Arc<ProblemObj> ProblemObj::Make(const NamedValues::Values& arrays) {
  return ffi::make_arc<ProblemObj>(ProblemOf(arrays));
}

ffi::Arc<ScheduleObj> ProblemObj::Schedule(Integers placements, Integers transfers) const {
  return ffi::make_arc<ScheduleObj>(this, placements, transfers);
}

ffi::Arc<ScheduleObj> ProblemObj::ScheduleOfSequence(Integers sequence) const {
  return ffi::make_arc<ScheduleObj>(this,
                                    search::ScheduleOf(SequenceOf(EventInstance(), sequence)));
}

const search::TaskGraph& ProblemObj::Graph() const {
  std::call_once(graph_made_, [this] { graph_ = std::make_unique<search::TaskGraph>(problem_); });
  return *graph_;
}

const search::Instance& ProblemObj::EventInstance() const {
  std::call_once(instance_made_,
                 [this] { instance_ = std::make_unique<search::Instance>(problem_); });
  return *instance_;
}

ffi::Optional<ffi::Arc<ScheduleObj>> ProblemObj::Complete(simulate::Schedule schedule) const {
  if (schedule.placements.size() < problem_.operators()) return std::nullopt;
  return ffi::make_arc<ScheduleObj>(this, std::move(schedule));
}

ffi::Optional<ffi::Arc<ScheduleObj>> ProblemObj::ListSchedule(const String& method) const {
  const auto rule = ValueOfName<search::ListMethod>(
      "list scheduling method", method,
      {{"heft", search::ListMethod::kHeft}, {"peft", search::ListMethod::kPeft}});
  return Complete(search::ListSchedule(EventInstance(), Graph(), rule));
}

ffi::Optional<ffi::Arc<ScheduleObj>> ProblemObj::Hios(const String& mapping, std::int64_t window,
                                                      std::int64_t streams,
                                                      const Function& progress) const {
  enum class Mapping { kPaths, kRecords, kRecordsAnywhere };
  const auto rule = ValueOfName<Mapping>("mapping", mapping,
                                         {{"paths", Mapping::kPaths},
                                          {"records", Mapping::kRecords},
                                          {"records-anywhere", Mapping::kRecordsAnywhere}});
  const search::TaskGraph& graph = Graph();
  const search::Progress report = ProgressOf(progress);
  const auto device = rule == Mapping::kPaths
                          ? MapLongestPaths(graph, report)
                          : MapByRecords(graph, rule == Mapping::kRecordsAnywhere, report);
  const auto most =
      static_cast<std::int32_t>(IndexBelow("streams", streams, 1, std::size_t{1} << 30));
  const search::Stages stages =
      GroupNeighbours(graph, problem_.concurrency, device, static_cast<int>(window), most, report);
  search::PartialSchedule placed(EventInstance(), search::Growth::Plain());
  std::int32_t number = 0;
  for (const auto& [on, stage] : InOrder(graph, problem_.concurrency, stages, most)) {
    std::vector<std::int32_t> stream(stage.size());
    for (std::size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<std::int32_t>(i) % most;
    if (placed.PlaceStage(stage, stream, on, ++number) == simulate::kNever) return std::nullopt;
  }
  return Complete(placed.Schedule());
}

ffi::Arc<IosResultObj> ProblemObj::Ios(std::int64_t device, const IosLimitsObj* limits,
                                       Integers block_of, const Function& progress) const {
  const auto on =
      static_cast<simulate::DeviceId>(IndexBelow("device", device, 0, problem_.devices.size()));
  std::span<std::int64_t> blocks;
  if (!Elements("block_of", block_of).empty()) {
    blocks = Elements("block_of", block_of, problem_.operators());
  }
  const search::IosAnswer answer =
      SolveStages(Graph(), problem_.concurrency, on,
                  {static_cast<int>(limits->groups), static_cast<int>(limits->group_size),
                   static_cast<int>(limits->block), limits->states},
                  blocks, ProgressOf(progress));
  const auto result = ffi::make_arc<IosResultObj>();
  result->block_operators = answer.operators;
  result->too_many_states = answer.states == search::kTooMany;
  if (result->too_many_states) {
    result->log2_states = std::llround(answer.log2_states);
    return result;
  }
  result->profiled_stages = answer.profiled;
  result->profiled_ns = answer.profile_time.count;
  search::PartialSchedule placed(EventInstance(), search::Growth::Plain());
  std::int32_t number = 0;
  for (const search::GroupedStage& stage : answer.stages) {
    if (placed.PlaceStage(stage.ops, stage.group, on, ++number) == simulate::kNever) return result;
  }
  result->schedule = Complete(placed.Schedule());
  return result;
}

ffi::Optional<ffi::Arc<ScheduleObj>> ProblemObj::Anneal(Integers operators, Integers devices,
                                                        Integers joins,
                                                        const AnnealingEffortObj* effort,
                                                        const Function& progress) const {
  const std::size_t count = problem_.operators();
  const std::span<std::int64_t> together = Elements("joins", joins, count);
  search::Launches launches = LaunchesOf(problem_, operators, devices);
  search::StageSequence start{std::move(launches.order), std::move(launches.device), {}};
  for (std::int64_t joined : together) start.joins.push_back(joined != 0);
  const search::StageSequence best = search::Anneal(
      EventInstance(), Graph(), start,
      {effort->operators, static_cast<std::uint64_t>(effort->seed), effort->goal_ns,
       static_cast<int>(effort->stage_operators)},
      [&](std::int64_t done, std::int64_t total) { return progress(done, total).cast<double>(); });
  return Complete(search::PlaceBest(EventInstance(), best).ScheduleByStart());
}

ffi::Tensor ProblemObj::AllocateStreams(const String& method, Integers operators,
                                        Integers devices) const {
  const auto rule = ValueOfName<search::Allocation>("stream allocator", method,
                                                    {{"one", search::Allocation::kOne},
                                                     {"opara", search::Allocation::kOpara},
                                                     {"nimble", search::Allocation::kNimble},
                                                     {"wavefront", search::Allocation::kWavefront},
                                                     {"fewest", search::Allocation::kFewest}});
  search::Launches launches = LaunchesOf(problem_, operators, devices);
  search::AllocateStreams(Graph(), rule, &launches);
  std::vector<std::int64_t> streams;
  for (simulate::OperatorId op : launches.order) streams.push_back(launches.stream[op]);
  return NewRow<std::int64_t>(streams);
}

std::int64_t ProblemObj::CountSynchronizations(Integers operators, Integers devices,
                                               Integers streams) const {
  search::Launches launches = LaunchesOf(problem_, operators, devices);
  const std::span<std::int64_t> stream = Elements("streams", streams, launches.order.size());
  for (std::size_t i = 0; i < stream.size(); ++i) {
    launches.stream[launches.order[i]] = static_cast<std::int32_t>(stream[i]);
  }
  return search::CountSynchronizations(Graph(), launches);
}

ffi::Tensor ProblemObj::OrderLaunches(const String& method, Integers demand,
                                      Integers memory_bound) const {
  const auto rule =
      ValueOfName<search::LaunchOrder>("launch order", method,
                                       {{"depth-first", search::LaunchOrder::kDepthFirst},
                                        {"breadth-first", search::LaunchOrder::kBreadthFirst},
                                        {"critical-path", search::LaunchOrder::kCriticalPath},
                                        {"opara", search::LaunchOrder::kOpara},
                                        {"opara-program", search::LaunchOrder::kOparaProgram}});
  const std::size_t count = problem_.operators();
  const std::span<std::int64_t> given = Elements("demand", demand, count);
  const std::vector<double> demands(given.begin(), given.end());
  return NewRow<std::int64_t>(
      search::OrderLaunches(Graph(), rule, demands, Elements("memory_bound", memory_bound, count)));
}

ffi::Optional<ffi::Arc<ConstructedSequenceObj>> ProblemObj::Construct(
    Integers allowed, Integers direct, Integers copy_percent, Integers choice, double memory_scale,
    Integers home, Integers turn) const {
  const search::Instance& instance = EventInstance();
  const std::vector<search::Choice> choices =
      ChoicesOf(instance.devices(), allowed, direct, copy_percent);
  std::vector<std::int32_t> chosen;
  for (std::int64_t c : Elements("choice", choice, instance.operators())) {
    chosen.push_back(IndexBelow("choice", c, 0, choices.size()));
  }
  std::vector<search::DeviceId> homes;
  for (std::int64_t d : Elements("home", home, home.numel() > 0 ? instance.tensors() : 0)) {
    homes.push_back(IndexBelow("home", d, search::kNone, instance.devices()));
  }
  const std::span<std::int64_t> given =
      Elements("turn", turn, turn.numel() > 0 ? instance.operators() : 0);
  const search::Constructed made = search::Construct(
      instance, choices, chosen, memory_scale, std::move(homes), {given.begin(), given.end()});
  if (made.events.empty()) return std::nullopt;
  const auto result = ffi::make_arc<ConstructedSequenceObj>();
  result->events = TableOf(made.events);
  result->latency_ns = made.latency.count;
  return result;
}

ffi::Arc<LocalSearchObj> ProblemObj::Improve(Integers sequence,
                                             const LocalSearchSettingsObj* settings) const {
  return ffi::make_arc<LocalSearchObj>(this, sequence, settings);
}

ffi::Arc<PartialScheduleObj> ProblemObj::PartialSchedule(double memory_scale) const {
  return ffi::make_arc<PartialScheduleObj>(this, memory_scale);
}

}  // namespace tvm_sched
