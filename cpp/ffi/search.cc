#include "search.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "arrays.h"
#include "search/annealing.h"
#include "search/builder.h"
#include "search/heft.h"
#include "search/hios.h"
#include "search/ios.h"
#include "search/sequence_timer.h"
#include "search/streams.h"
#include "search/task_graph.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using Tables = ffi::Array<ffi::Tensor>;

/*! \brief A problem with its task graph, which is made when it is first needed. */
class BoundSearch {
 public:
  explicit BoundSearch(std::shared_ptr<const simulate::Problem> problem)
      : problem_(std::move(problem)) {}

  Tables List(int64_t method) const {
    return Answer(ListSchedule(*problem_, Graph(), static_cast<search::ListMethod>(method)));
  }

  /*! \brief `by_paths`: HIOS-LP, else HIOS-MR; a window below 2 leaves operators by themselves. */
  Tables Hios(bool by_paths, int64_t window, const ffi::Function& progress) const {
    const search::TaskGraph& graph = Graph();
    const search::Progress tell = Teller(progress);
    const auto device = by_paths ? MapLongestPaths(graph, tell) : MapByRecords(graph, tell);
    const search::Stages stages =
        GroupNeighbours(graph, problem_->concurrency, device, static_cast<int>(window), tell);
    search::Builder builder(*problem_);
    int32_t number = 0;
    for (const auto& [on, stage] : InOrder(graph, problem_->concurrency, stages)) {
      std::vector<int32_t> streams(stage.size());
      for (size_t i = 0; i < streams.size(); ++i) streams[i] = static_cast<int32_t>(i);
      if (builder.RunStage(stage, streams, on, ++number) == simulate::kNever) return {};
    }
    return Answer(builder.schedule());
  }

  /*! \brief `limits`: groups, operators of a group, operators of a block, states; afterwards it
   * holds the largest block's operators and states and, where these are too many, the power of two
   * that is about as many. */
  Tables Ios(int64_t device, ffi::TensorView limits, const ffi::Function& progress) const {
    const std::span<int64_t> given = Elements("limits", limits, 4);
    const search::TaskGraph& graph = Graph();
    const auto on = static_cast<simulate::DeviceId>(device);
    const search::IosAnswer answer =
        SolveStages(graph, problem_->concurrency, on,
                    {static_cast<int>(given[0]), static_cast<int>(given[1]),
                     static_cast<int>(given[2]), given[3]},
                    Teller(progress));
    given[0] = answer.operators;
    given[1] = answer.states;
    given[2] = answer.estimate > 0 ? std::llround(std::log2(answer.estimate)) : 0;
    search::Builder builder(*problem_);
    int32_t number = 0;
    for (const search::GroupedStage& stage : answer.stages) {
      if (builder.RunStage(stage.ops, stage.group, on, ++number) == simulate::kNever) return {};
    }
    return Answer(builder.schedule());
  }

  /*! \brief `sequence`: rows of operator, device, whether it starts with the one before it, in
   * topological order; `effort`: operators to time, seed, goal, most operators of a stage. */
  Tables Anneal(ffi::TensorView sequence, ffi::TensorView effort,
                const ffi::Function& progress) const {
    const std::span<int64_t> rows = Elements("sequence", sequence, 3 * problem_->operators());
    const std::span<int64_t> given = Elements("effort", effort, 4);
    search::StageSequence start;
    start.device.resize(problem_->operators());
    for (size_t i = 0; i < rows.size(); i += 3) {
      start.order.push_back(static_cast<int32_t>(rows[i]));
      start.device.at(rows[i]) = static_cast<int32_t>(rows[i + 1]);
      start.joins.push_back(rows[i + 2] != 0);
    }
    const search::TaskGraph& graph = Graph();
    const search::StageSequence best = search::Anneal(
        *problem_, graph, start,
        {given[0], static_cast<uint64_t>(given[1]), given[2], static_cast<int>(given[3])},
        [&](int64_t done, int64_t total) { return progress(done, total).cast<double>(); });
    search::Builder builder(*problem_);
    if (!search::Append(best, &builder)) return {};
    return Answer(builder.schedule());
  }

  /*! \brief `launches`: rows of operators, devices, streams, in launch order and topological; the
   * third is filled in. */
  void AllocateStreams(int64_t method, ffi::TensorView launches) const {
    const size_t count = problem_->operators();
    const std::span<int64_t> rows = Elements("launches", launches, 3 * count);
    search::Launches found = LaunchesOf(rows);
    search::AllocateStreams(Graph(), static_cast<search::Allocation>(method), &found);
    for (size_t i = 0; i < count; ++i) rows[2 * count + i] = found.stream[found.order[i]];
  }

  int64_t CountSynchronizations(ffi::TensorView launches) const {
    const size_t count = problem_->operators();
    return search::CountSynchronizations(Graph(),
                                         LaunchesOf(Elements("launches", launches, 3 * count)));
  }

  /*! \brief `demand` holds whole numbers; `order` is filled in. */
  void OrderLaunches(int64_t method, ffi::TensorView demand, ffi::TensorView memory_bound,
                     ffi::TensorView order) const {
    const size_t count = problem_->operators();
    const std::span<int64_t> given = Elements("demand", demand, count);
    const std::vector<double> demands(given.begin(), given.end());
    const auto found =
        search::OrderLaunches(Graph(), static_cast<search::LaunchOrder>(method), demands,
                              Elements("memory_bound", memory_bound, count));
    std::ranges::copy(found, Elements("order", order, count).begin());
  }

 private:
  const search::TaskGraph& Graph() const {
    std::call_once(made_, [this] { graph_ = std::make_unique<search::TaskGraph>(*problem_); });
    return *graph_;
  }

  /*! \brief Rows of operator, device, stream in launch order; each operator stands once. */
  search::Launches LaunchesOf(std::span<const int64_t> rows) const {
    const size_t count = problem_->operators();
    search::Launches launches{std::vector<simulate::OperatorId>(count),
                              std::vector<simulate::DeviceId>(count), std::vector<int32_t>(count)};
    std::vector<bool> seen(count);
    for (size_t i = 0; i < count; ++i) {
      const int64_t op = rows[i], device = rows[count + i];
      TVM_FFI_CHECK(op >= 0 && op < static_cast<int64_t>(count) && !seen[op] && device >= 0 &&
                        device < static_cast<int64_t>(problem_->devices.size()),
                    ValueError)
          << "launches names operator " << op << " on device " << device << " wrongly";
      seen[op] = true;
      launches.order[i] = static_cast<int32_t>(op);
      launches.device[op] = static_cast<int32_t>(device);
      launches.stream[op] = static_cast<int32_t>(rows[2 * count + i]);
    }
    return launches;
  }

  Tables Answer(const simulate::Schedule& schedule) const {
    if (schedule.placements.size() < problem_->operators()) return {};
    return TablesOf(schedule);
  }

  static search::Progress Teller(const ffi::Function& progress) {
    return [progress](int64_t done, int64_t total) { progress(done, total); };
  }

  const std::shared_ptr<const simulate::Problem> problem_;
  mutable std::once_flag made_;
  mutable std::unique_ptr<search::TaskGraph> graph_;
};

}  // namespace

ffi::Array<ffi::Function> SearchFunctions(std::shared_ptr<const simulate::Problem> problem) {
  auto bound = std::make_shared<const BoundSearch>(std::move(problem));
  using View = ffi::TensorView;
  return {
      ffi::Function::FromTyped([bound](int64_t method) { return bound->List(method); }),
      ffi::Function::FromTyped([bound](bool by_paths, int64_t window, ffi::Function progress) {
        return bound->Hios(by_paths, window, progress);
      }),
      ffi::Function::FromTyped([bound](int64_t device, View limits, ffi::Function progress) {
        return bound->Ios(device, limits, progress);
      }),
      ffi::Function::FromTyped([bound](View sequence, View effort, ffi::Function progress) {
        return bound->Anneal(sequence, effort, progress);
      }),
      ffi::Function::FromTyped(
          [bound](int64_t method, View launches) { bound->AllocateStreams(method, launches); }),
      ffi::Function::FromTyped(
          [bound](View launches) { return bound->CountSynchronizations(launches); }),
      ffi::Function::FromTyped([bound](int64_t method, View demand, View memory_bound, View order) {
        bound->OrderLaunches(method, demand, memory_bound, order);
      }),
  };
}

}  // namespace tvm_sched
