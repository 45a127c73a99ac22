// The object "tvm_sched.PartitionGraph": a graph that is made once, and the algorithms that cut it
// into pipeline stages. Python's half is `NativeGraph` in python/tvm_sched/pipeline/native.py.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <chrono>
#include <limits>

#include "arrays.h"
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
std::vector<T> Copy(const char* name, const ffi::TensorView& tensor, size_t size) {
  const std::span<T> elements = Elements<T>(name, tensor, size);
  return {elements.begin(), elements.end()};
}

/*! \brief Says to stop when the time is over; throws Python's interrupt. */
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

enum class Objective : int64_t { kSlice = 0, kArrangement = 1, kWeightedArrangement = 2 };

class PartitionGraphObj : public ffi::Object {
 public:
  explicit PartitionGraphObj(Graph graph) : graph_(std::move(graph)) {}

  /*! \brief Cost of the bottleneck, then where each stage ends; infinity alone where none is below
   * the limit. */
  ffi::Tensor Slice(ffi::TensorView order, int64_t stages, double limit) const {
    const partition::Slicing slicing =
        partition::Slice(graph_, Checked(order), Positive("stages", stages), limit);
    std::vector<double> row{slicing.cost};
    for (size_t end : slicing.ends) row.push_back(static_cast<double>(end));
    return NewRow<double>(row);
  }

  double StageCost(ffi::TensorView nodes) const {
    const std::span<int64_t> elements = Elements<int64_t>("nodes", nodes);
    partition::Order order;
    for (int64_t v : elements) order.push_back(Node(v));
    return partition::StageCost(graph_, order);
  }

  ffi::Tensor Kahn(ffi::TensorView keys) const {
    return NewRow<int64_t>(
        partition::KahnOrder(graph_, Copy<double>("keys", keys, graph_.nodes())));
  }

  double Arrangement(ffi::TensorView order, bool weighted) const {
    return partition::LinearArrangement(graph_, Checked(order), weighted);
  }

  /*! \brief The best keys found by the genetic algorithm, from rows of keys to start with. */
  ffi::Tensor Evolve(int64_t objective, int64_t stages, int64_t population, int64_t generations,
                     int64_t seed, int64_t threads, double seconds, ffi::TensorView start) const {
    const size_t n = graph_.nodes();
    partition::GeneticSettings settings;
    settings.population = Positive("population", population);
    settings.generations = Positive("generations", generations);
    settings.threads = Positive("threads", threads);
    settings.seed = static_cast<uint64_t>(seed);
    const size_t count = Positive("stages", stages);
    const auto kind = static_cast<Objective>(objective);
    const partition::Fitness fitness = [&](std::span<const double> keys, double limit) {
      const partition::Order order = partition::KahnOrder(graph_, keys);
      if (kind == Objective::kSlice) return partition::Slice(graph_, order, count, limit).cost;
      return partition::LinearArrangement(graph_, order, kind == Objective::kWeightedArrangement);
    };
    const std::span<double> rows = Elements<double>("start", start);
    TVM_FFI_CHECK(n == 0 || rows.size() % n == 0, ValueError)
        << "start has " << rows.size() << " keys, not rows of " << n;
    std::vector<partition::Keys> first;
    for (size_t i = 0; n > 0 && i < rows.size(); i += n) {
      first.emplace_back(rows.begin() + static_cast<std::ptrdiff_t>(i),
                         rows.begin() + static_cast<std::ptrdiff_t>(i + n));
    }
    return NewRow<double>(
        partition::Evolve(n, fitness, settings, std::move(first), Deadline(seconds)).keys);
  }

  ffi::Tensor Refine(ffi::TensorView stages, int64_t count, int64_t seed, int64_t moves,
                     double seconds) const {
    const std::vector<int64_t> start = Copy<int64_t>("stages", stages, graph_.nodes());
    partition::RefineSettings settings;
    settings.stages = Positive("count", count);
    settings.seed = static_cast<uint64_t>(seed);
    settings.moves = moves;
    partition::Stages assignment;
    for (int64_t s : start) {
      TVM_FFI_CHECK(s >= 0 && s < count, ValueError) << "stage " << s << " of " << count;
      assignment.push_back(static_cast<int32_t>(s));
    }
    for (size_t v = 0; v < assignment.size(); ++v) {
      for (NodeId u : graph_.predecessors[v]) {
        TVM_FFI_CHECK(assignment[u] <= assignment[v], ValueError)
            << "node " << v << " is in an earlier stage than node " << u << ", which it reads";
      }
    }
    return NewRow<int64_t>(
        partition::Refine(graph_, std::move(assignment), settings, Deadline(seconds)));
  }

  /*! \brief Costs of all segments [l, r] of an order, row after row; r from l on. */
  ffi::Tensor SegmentCosts(ffi::TensorView order) const {
    const partition::Order nodes = Checked(order);
    partition::SegmentCosts costs(graph_, nodes);
    std::vector<double> rows;
    for (size_t first = 0; first < nodes.size(); ++first) {
      const std::span<const double> row = costs.Row(first, std::numeric_limits<double>::infinity());
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return NewRow<double>(rows);
  }

  /*! \brief Number of ideals, whether time was over, cost, then the stage of each node if any. */
  ffi::Tensor Ideals(int64_t stages, int64_t most, double limit, double seconds) const {
    const partition::IdealPartition found = partition::PartitionByIdeals(
        graph_, {Positive("stages", stages), Positive("most", most), limit}, Deadline(seconds));
    std::vector<double> row{static_cast<double>(found.ideals), found.stopped ? 1.0 : 0.0,
                            found.cost};
    row.insert(row.end(), found.stages.begin(), found.stages.end());
    return NewRow<double>(row);
  }

  /*! \brief Nodes looked at, steps, then for each stage worth more its length and nodes. */
  ffi::Tensor ValuableStages(ffi::TensorView values, int64_t target, double limit, int64_t first,
                             int64_t steps, int64_t most, double seconds) const {
    partition::StageValueSettings settings;
    settings.value = Copy<int64_t>("values", values, graph_.nodes());
    int64_t total = 0;
    for (int64_t value : settings.value) {
      TVM_FFI_CHECK(value >= 0 && value <= partition::kMostValue - total, ValueError)
          << "values have to be 0 or more, and at most " << partition::kMostValue << " together";
      total += value;
    }
    TVM_FFI_CHECK(target >= 0 && limit >= 0 && first >= 0, ValueError)
        << "target, limit and first are " << target << ", " << limit << " and " << first
        << "; 0 or more are allowed";
    settings.target = target;
    settings.limit = limit;
    settings.first = static_cast<size_t>(first);
    settings.steps = Positive("steps", steps);
    settings.most = Positive("most", most);
    const partition::StageValue found =
        partition::MostValuableStages(graph_, settings, Deadline(seconds));
    std::vector<int64_t> row{static_cast<int64_t>(found.next), static_cast<int64_t>(found.steps)};
    for (const std::vector<NodeId>& stage : found.better) {
      row.push_back(static_cast<int64_t>(stage.size()));
      row.insert(row.end(), stage.begin(), stage.end());
    }
    return NewRow<int64_t>(row);
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.PartitionGraph", PartitionGraphObj, ffi::Object);

 private:
  NodeId Node(int64_t v) const {
    TVM_FFI_CHECK(v >= 0 && v < static_cast<int64_t>(graph_.nodes()), IndexError)
        << "node " << v << " of " << graph_.nodes();
    return static_cast<NodeId>(v);
  }

  partition::Order Checked(const ffi::TensorView& order) const {
    partition::Order nodes;
    for (int64_t v : Elements<int64_t>("order", order)) nodes.push_back(Node(v));
    TVM_FFI_CHECK(IsTopological(graph_, nodes), ValueError)
        << "order is not a topological order of the graph";
    return nodes;
  }

  static size_t Positive(const char* name, int64_t value) {
    TVM_FFI_CHECK(value >= 1, ValueError) << name << " is " << value << "; 1 or more are allowed";
    return static_cast<size_t>(value);
  }

  const Graph graph_;
};

/*! \brief `producers` has the node that makes each tensor, or -1; `leaves` is 0 or 1. */
ffi::ObjectRef MakePartitionGraph(ffi::TensorView work, ffi::TensorView parameters,
                                  ffi::TensorView producers, ffi::TensorView transfers,
                                  ffi::TensorView sizes, ffi::TensorView leaves,
                                  ffi::TensorView reader_offsets, ffi::TensorView readers,
                                  double memory, double overflow_time) {
  Graph graph;
  const std::span<double> works = Elements<double>("work", work);
  const auto n = static_cast<int64_t>(works.size());
  graph.work.assign(works.begin(), works.end());
  graph.parameters = Copy<double>("parameters", parameters, works.size());
  graph.memory = memory;
  graph.overflow_time = overflow_time;
  const std::span<int64_t> producer = Elements<int64_t>("producers", producers);
  const std::vector<double> transfer = Copy<double>("transfers", transfers, producer.size());
  const std::vector<double> size = Copy<double>("sizes", sizes, producer.size());
  const std::vector<int64_t> leaving = Copy<int64_t>("leaves", leaves, producer.size());
  graph.readers.offset = Copy<int64_t>("reader_offsets", reader_offsets, producer.size() + 1);
  for (int64_t v : Elements<int64_t>("readers", readers)) {
    TVM_FFI_CHECK(v >= 0 && v < n, IndexError) << "reader " << v << " of " << n << " nodes";
    graph.readers.value.push_back(static_cast<NodeId>(v));
  }
  int64_t before = 0;
  for (int64_t offset : graph.readers.offset) {
    TVM_FFI_CHECK(offset >= before && offset <= static_cast<int64_t>(graph.readers.value.size()),
                  ValueError)
        << "reader_offsets do not ascend";
    before = offset;
  }
  for (size_t t = 0; t < producer.size(); ++t) {
    TVM_FFI_CHECK(producer[t] >= kNone && producer[t] < n, IndexError)
        << "producer " << producer[t];
    graph.tensors.push_back(
        {static_cast<NodeId>(producer[t]), transfer[t], size[t], leaving[t] != 0});
  }
  Finish(graph);
  return ffi::ObjectRef(ffi::make_object<PartitionGraphObj>(std::move(graph)));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  refl::ObjectDef<PartitionGraphObj>(refl::init(false))
      .def_static("make", MakePartitionGraph)
      .def("slice", &PartitionGraphObj::Slice)
      .def("stage_cost", &PartitionGraphObj::StageCost)
      .def("kahn", &PartitionGraphObj::Kahn)
      .def("arrangement", &PartitionGraphObj::Arrangement)
      .def("evolve", &PartitionGraphObj::Evolve)
      .def("refine", &PartitionGraphObj::Refine)
      .def("segment_costs", &PartitionGraphObj::SegmentCosts)
      .def("ideals", &PartitionGraphObj::Ideals)
      .def("valuable_stages", &PartitionGraphObj::ValuableStages);
}

}  // namespace
}  // namespace tvm_sched
