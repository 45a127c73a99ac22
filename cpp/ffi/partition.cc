// The object "tvm_sched.PartitionGraph": a graph that is made once, and the algorithms that cut it
// into pipeline stages; with the objects that name their settings and answers.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <chrono>
#include <limits>

#include "ffi/arrays.h"
#include "ffi/names.h"
#include "ffi/records.h"
#include "runtime/throw.h"
#include "search/partition/ideals.h"
#include "search/partition/orders.h"
#include "search/partition/refine.h"
#include "search/partition/segment_costs.h"
#include "search/partition/slice.h"
#include "search/partition/stage_value.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using partition::Graph;
using partition::kNone;
using partition::NodeId;

template <typename T>
std::vector<T> Copy(const char* name, const ArrayView<T>& array, std::size_t size) {
  const std::span<T> elements = Elements<T>(name, array, size);
  return {elements.begin(), elements.end()};
}

/// Says to stop when the time is over; throws Python's interrupt.
class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                 std::chrono::duration<double>(std::min(seconds, 1e8)))) {}

  bool operator()() const {
    if (TVMFFIEnvCheckSignals() != 0) throw ffi::EnvErrorAlreadySet();
    return std::chrono::steady_clock::now() >= end_;
  }

 private:
  std::chrono::steady_clock::time_point end_;
};

/// What an order is worth to the genetic algorithm.
enum class Objective { kSlice, kArrangement, kWeightedArrangement };

/// "tvm_sched.Slicing": the best cut of an order.
class SlicingObj : public ffi::Object {
 public:
  double bottleneck = 0;  // infinite where no cut is below the limit
  ffi::Tensor ends;       // where each stage ends

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.Slicing", SlicingObj, ffi::Object);
};

/// "tvm_sched.GeneticSettings".
class GeneticSettingsObj : public ffi::Object {
 public:
  ffi::String objective = "slice";  // or "arrangement", "weighted-arrangement"
  std::int64_t stages = 1;
  std::int64_t population = 1;
  std::int64_t generations = 1;
  std::int64_t seed = 0;
  std::int64_t threads = 1;
  double seconds = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.GeneticSettings", GeneticSettingsObj, ffi::Object);
};

/// "tvm_sched.RefineSettings".
class RefineSettingsObj : public ffi::Object {
 public:
  std::int64_t stages = 1;
  std::int64_t seed = 0;
  std::int64_t moves = 0;  // tried
  double seconds = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.RefineSettings", RefineSettingsObj, ffi::Object);
};

/// "tvm_sched.IdealSettings".
class IdealSettingsObj : public ffi::Object {
 public:
  std::int64_t stages = 1;
  std::int64_t most_ideals = 1;  // with more than these the search is given up
  double limit = 0;              // only stages cheaper than this
  double seconds = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.IdealSettings", IdealSettingsObj, ffi::Object);
};

/// "tvm_sched.IdealPartition".
class IdealPartitionObj : public ffi::Object {
 public:
  std::int64_t ideals = 0;
  bool stopped = false;               // whether time was over
  ffi::Optional<ffi::Tensor> stages;  // of each node; none where no partition is below the limit

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.IdealPartition", IdealPartitionObj, ffi::Object);
};

/// "tvm_sched.StageValueSettings": see `partition::StageValueSettings`.
class StageValueSettingsObj : public ffi::Object {
 public:
  std::int64_t target = 0;
  double limit = 0;
  std::int64_t first = 0;
  std::int64_t steps = 1;
  std::int64_t most_steps = 1;
  double seconds = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.StageValueSettings", StageValueSettingsObj,
                                    ffi::Object);
};

/// "tvm_sched.ValuableStages".
class ValuableStagesObj : public ffi::Object {
 public:
  std::int64_t next = 0;           // nodes whose stages have been looked through
  std::int64_t steps = 0;          // of the search tree
  ffi::Array<ffi::Tensor> stages;  // the nodes of each that is worth more than the target

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.ValuableStages", ValuableStagesObj, ffi::Object);
};

class PartitionGraphObj : public ffi::Object {
 public:
  explicit PartitionGraphObj(Graph graph) : graph_(std::move(graph)) {}

  static ffi::Arc<PartitionGraphObj> Make(const NamedValues::Values& arrays);

  ffi::Arc<SlicingObj> Slice(Integers order, std::int64_t stages, double limit) const {
    const partition::Slicing slicing =
        partition::Slice(graph_, Checked(order), Positive("stages", stages), limit);
    const auto result = ffi::make_arc<SlicingObj>();
    result->bottleneck = slicing.cost;
    result->ends = NewRow<std::int64_t>(slicing.ends);
    return result;
  }

  /// Cost of a stage that runs these nodes in this order.
  double StageCost(Integers nodes) const {
    partition::Order order;
    for (std::int64_t v : Elements("nodes", nodes)) order.push_back(Node(v));
    return partition::StageCost(graph_, order);
  }

  ffi::Tensor Kahn(Floats keys) const {
    return NewRow<std::int64_t>(
        partition::KahnOrder(graph_, Copy<double>("keys", keys, graph_.nodes())));
  }

  double Arrangement(Integers order, bool weighted) const {
    return partition::LinearArrangement(graph_, Checked(order), weighted);
  }

  /// The best keys found by the genetic algorithm, from rows of keys to start with.
  ffi::Tensor Evolve(Floats start, const GeneticSettingsObj* given) const {
    const std::size_t n = graph_.nodes();
    partition::GeneticSettings settings;
    settings.population = Positive("population", given->population);
    settings.generations = Positive("generations", given->generations);
    settings.threads = Positive("threads", given->threads);
    settings.seed = static_cast<std::uint64_t>(given->seed);
    const std::size_t count = Positive("stages", given->stages);
    const auto objective =
        ValueOfName<Objective>("objective", given->objective,
                               {{"slice", Objective::kSlice},
                                {"arrangement", Objective::kArrangement},
                                {"weighted-arrangement", Objective::kWeightedArrangement}});
    const partition::Fitness fitness = [&](std::span<const double> keys, double limit) {
      const partition::Order order = partition::KahnOrder(graph_, keys);
      if (objective == Objective::kSlice) return partition::Slice(graph_, order, count, limit).cost;
      return partition::LinearArrangement(graph_, order,
                                          objective == Objective::kWeightedArrangement);
    };
    const std::span<double> rows = Elements<double>("start", start);
    TVM_SCHED_CHECK(n == 0 || rows.size() % n == 0, ValueError)
        << "start has " << rows.size() << " keys, not rows of " << n;
    std::vector<partition::Keys> first;
    for (std::size_t i = 0; n > 0 && i < rows.size(); i += n) {
      first.emplace_back(rows.begin() + static_cast<std::ptrdiff_t>(i),
                         rows.begin() + static_cast<std::ptrdiff_t>(i + n));
    }
    return NewRow<double>(
        partition::Evolve(n, fitness, settings, std::move(first), Deadline(given->seconds)).keys);
  }

  /// The stage of each node after annealing.
  ffi::Tensor Refine(Integers stages, const RefineSettingsObj* given) const {
    partition::RefineSettings settings;
    settings.stages = Positive("stages", given->stages);
    settings.seed = static_cast<std::uint64_t>(given->seed);
    settings.moves = given->moves;
    partition::Stages assignment;
    for (std::int64_t s : Elements("stages", stages, graph_.nodes())) {
      TVM_SCHED_CHECK(s >= 0 && s < given->stages, ValueError)
          << "stage " << s << " of " << given->stages;
      assignment.push_back(static_cast<std::int32_t>(s));
    }
    for (std::size_t v = 0; v < assignment.size(); ++v) {
      for (NodeId u : graph_.predecessors[v]) {
        TVM_SCHED_CHECK(assignment[u] <= assignment[v], ValueError)
            << "node " << v << " is in an earlier stage than node " << u << ", which it reads";
      }
    }
    return NewRow<std::int64_t>(
        partition::Refine(graph_, std::move(assignment), settings, Deadline(given->seconds)));
  }

  /// Costs of all segments [l, r] of an order, row after row; r from l on.
  ffi::Tensor SegmentCosts(Integers order) const {
    const partition::Order nodes = Checked(order);
    partition::SegmentCosts costs(graph_, nodes);
    std::vector<double> rows;
    for (std::size_t first = 0; first < nodes.size(); ++first) {
      const std::span<const double> row = costs.Row(first, std::numeric_limits<double>::infinity());
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return NewRow<double>(rows);
  }

  ffi::Arc<IdealPartitionObj> Ideals(const IdealSettingsObj* given) const {
    const partition::IdealPartition found =
        partition::PartitionByIdeals(graph_,
                                     {Positive("stages", given->stages),
                                      Positive("most_ideals", given->most_ideals), given->limit},
                                     Deadline(given->seconds));
    const auto result = ffi::make_arc<IdealPartitionObj>();
    result->ideals = static_cast<std::int64_t>(found.ideals);
    result->stopped = found.stopped;
    if (found.cost < std::numeric_limits<double>::infinity()) {
      result->stages = NewRow<std::int64_t>(found.stages);
    }
    return result;
  }

  ffi::Arc<ValuableStagesObj> ValuableStages(Integers values,
                                             const StageValueSettingsObj* given) const {
    partition::StageValueSettings settings;
    settings.value = Copy<std::int64_t>("values", values, graph_.nodes());
    std::int64_t total = 0;
    for (std::int64_t value : settings.value) {
      TVM_SCHED_CHECK(value >= 0 && value <= partition::kMostValue - total, ValueError)
          << "values have to be 0 or more, and at most " << partition::kMostValue << " together";
      total += value;
    }
    TVM_SCHED_CHECK(given->target >= 0 && given->limit >= 0 && given->first >= 0, ValueError)
        << "target, limit and first are " << given->target << ", " << given->limit << " and "
        << given->first << "; 0 or more are allowed";
    settings.target = given->target;
    settings.limit = given->limit;
    settings.first = static_cast<std::size_t>(given->first);
    settings.steps = Positive("steps", given->steps);
    settings.most = Positive("most_steps", given->most_steps);
    const partition::StageValue found =
        partition::MostValuableStages(graph_, settings, Deadline(given->seconds));
    const auto result = ffi::make_arc<ValuableStagesObj>();
    result->next = static_cast<std::int64_t>(found.next);
    result->steps = static_cast<std::int64_t>(found.steps);
    for (const std::vector<NodeId>& stage : found.better) {
      result->stages.push_back(NewRow<std::int64_t>(stage));
    }
    return result;
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.PartitionGraph", PartitionGraphObj, ffi::Object);

 private:
  NodeId Node(std::int64_t v) const {
    TVM_SCHED_CHECK(v >= 0 && v < static_cast<std::int64_t>(graph_.nodes()), IndexError)
        << "node " << v << " of " << graph_.nodes();
    return static_cast<NodeId>(v);
  }

  partition::Order Checked(const Integers& order) const {
    partition::Order nodes;
    for (std::int64_t v : Elements("order", order)) nodes.push_back(Node(v));
    TVM_SCHED_CHECK(IsTopological(graph_, nodes), ValueError)
        << "order is not a topological order of the graph";
    return nodes;
  }

  static std::size_t Positive(const char* name, std::int64_t value) {
    TVM_SCHED_CHECK(value >= 1, ValueError) << name << " is " << value << "; 1 or more are allowed";
    return static_cast<std::size_t>(value);
  }

  const Graph graph_;
};

/// From the arrays that `PartitionProblem` in Python makes, by name. `producers` has the
/// node that makes each tensor, or -1; `leaves` is 0 or 1.
ffi::Arc<PartitionGraphObj> PartitionGraphObj::Make(const NamedValues::Values& arrays) {
  const NamedValues values("a graph", arrays);
  const auto floats = [](std::span<double> elements) {
    return std::vector<double>(elements.begin(), elements.end());
  };
  Graph graph;
  graph.work = floats(values.Elements<double>("work"));
  graph.parameters = floats(values.Elements<double>("parameters", graph.work.size()));
  graph.memory = values.Number("memory");
  graph.overflow_time = values.Number("overflow_time");
  const auto n = static_cast<std::int64_t>(graph.work.size());
  const std::span<std::int64_t> producer = values.Elements("producers");
  const std::size_t tensors = producer.size();
  const std::span<double> transfer = values.Elements<double>("transfers", tensors);
  const std::span<double> size = values.Elements<double>("sizes", tensors);
  const std::span<std::int64_t> leaves = values.Elements("leaves", tensors);
  const std::span<std::int64_t> offsets = values.Elements("reader_offsets", tensors + 1);
  graph.readers.offset.assign(offsets.begin(), offsets.end());
  for (std::int64_t v : values.Elements("readers")) {
    TVM_SCHED_CHECK(v >= 0 && v < n, IndexError) << "reader " << v << " of " << n << " nodes";
    graph.readers.value.push_back(static_cast<NodeId>(v));
  }
  std::int64_t before = 0;
  for (std::int64_t offset : graph.readers.offset) {
    TVM_SCHED_CHECK(
        offset >= before && offset <= static_cast<std::int64_t>(graph.readers.value.size()),
        ValueError)
        << "reader_offsets do not ascend";
    before = offset;
  }
  for (std::size_t t = 0; t < tensors; ++t) {
    TVM_SCHED_CHECK(producer[t] >= kNone && producer[t] < n, IndexError)
        << "producer " << producer[t];
    graph.tensors.push_back(
        {static_cast<NodeId>(producer[t]), transfer[t], size[t], leaves[t] != 0});
  }
  Finish(graph);
  return ffi::make_arc<PartitionGraphObj>(std::move(graph));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  TVM_SCHED_RESULT(SlicingObj, bottleneck, ends);
  TVM_SCHED_SETTINGS(GeneticSettingsObj, objective, stages, population, generations, seed, threads,
                     seconds);
  TVM_SCHED_SETTINGS(RefineSettingsObj, stages, seed, moves, seconds);
  TVM_SCHED_SETTINGS(IdealSettingsObj, stages, most_ideals, limit, seconds);
  TVM_SCHED_RESULT(IdealPartitionObj, ideals, stopped, stages);
  TVM_SCHED_SETTINGS(StageValueSettingsObj, target, limit, first, steps, most_steps, seconds);
  TVM_SCHED_RESULT(ValuableStagesObj, next, steps, stages);
  TVM_SCHED_METHODS(PartitionGraphObj, (slice, Slice), (stage_cost, StageCost), (kahn, Kahn),
                    (arrangement, Arrangement), (evolve, Evolve), (refine, Refine),
                    (segment_costs, SegmentCosts), (ideals, Ideals),
                    (valuable_stages, ValuableStages))
      .def_static("make", &PartitionGraphObj::Make);
}

}  // namespace
}  // namespace tvm_sched
