#include "search/partition/refine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "search/partition/orders.h"
#include "search/random.h"

namespace tvm_sched::partition {

namespace {

constexpr double kPower = 8;  // of the stages' costs in the energy
constexpr int64_t kLookAtClock = 4096;

/*! \brief An assignment with the costs of its stages, kept up to date from move to move. */
class State {
 public:
  State(const Graph& graph, Stages stages, size_t count)
      : graph_(graph), stage_(std::move(stages)), load_(count, 0), parameters_(count, 0) {
    readers_.resize(graph.tensors.size() * count, 0);
    for (size_t v = 0; v < graph.nodes(); ++v) {
      load_[stage_[v]] += graph.work[v];
      parameters_[stage_[v]] += graph.parameters[v];
    }
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      for (NodeId reader : graph.readers[t]) ++Readers(t, stage_[reader]);
      for (size_t s = 0; s < count; ++s) {
        if (Pays(t, static_cast<int32_t>(s))) load_[s] += graph.tensors[t].transfer;
      }
    }
  }

  const Stages& stages() const { return stage_; }

  double Cost(size_t stage) const {
    double cost = load_[stage];
    if (graph_.limited()) {
      cost += std::max(parameters_[stage] - graph_.memory, 0.0) * graph_.overflow_time;
    }
    return cost;
  }

  double Bottleneck() const {
    double worst = 0;
    for (size_t s = 0; s < load_.size(); ++s) worst = std::max(worst, Cost(s));
    return worst;
  }

  /*! \brief Stages to which a node may go: not before what it reads, not behind its readers. */
  std::pair<int32_t, int32_t> Range(NodeId v) const {
    int32_t low = 0, high = static_cast<int32_t>(load_.size()) - 1;
    for (NodeId u : graph_.predecessors[v]) low = std::max(low, stage_[u]);
    for (NodeId w : graph_.successors[v]) high = std::min(high, stage_[w]);
    return {low, high};
  }

  /*! \brief Moves a node. Only the two stages' costs change: a tensor's other stages pay as before.
   */
  void Move(NodeId v, int32_t to) {
    const int32_t from = stage_[v];
    Charge(v, from, to, -1);
    for (int32_t t : graph_.read[v]) {
      --Readers(t, from);
      ++Readers(t, to);
    }
    stage_[v] = to;
    Charge(v, from, to, +1);
    load_[from] -= graph_.work[v];
    load_[to] += graph_.work[v];
    parameters_[from] -= graph_.parameters[v];
    parameters_[to] += graph_.parameters[v];
  }

 private:
  int32_t& Readers(size_t tensor, int32_t stage) {
    return readers_[tensor * load_.size() + static_cast<size_t>(stage)];
  }

  /*! \brief Whether a stage gets or sends a tensor. */
  bool Pays(size_t t, int32_t stage) {
    const Tensor& tensor = graph_.tensors[t];
    const int32_t here = Readers(t, stage);
    if (tensor.producer != kNone && stage_[tensor.producer] == stage) {
      return tensor.leaves || here < static_cast<int32_t>(graph_.readers[t].size());
    }
    return here > 0;
  }

  /*! \brief Adds or takes away what two stages pay for the tensors of a node. */
  void Charge(NodeId v, int32_t from, int32_t to, double sign) {
    for (const std::span<const int32_t> tensors : {graph_.read[v], graph_.made[v]}) {
      for (int32_t t : tensors) {
        for (int32_t stage : {from, to}) {
          if (Pays(t, stage)) load_[stage] += sign * graph_.tensors[t].transfer;
        }
      }
    }
  }

  const Graph& graph_;
  Stages stage_;
  std::vector<double> load_, parameters_;
  std::vector<int32_t> readers_;  // of each tensor in each stage
};

}  // namespace

Stages Refine(const Graph& graph, Stages start, const RefineSettings& settings,
              const std::function<bool()>& stop) {
  if (graph.nodes() == 0 || settings.stages < 2) return start;
  MersenneTwister random(settings.seed);
  State state(graph, std::move(start), settings.stages);
  Stages best = state.stages();
  double best_cost = state.Bottleneck();
  if (best_cost <= 0) return best;
  const double scale = best_cost;  // energies are near 1 for the bottleneck
  const auto energy = [&](int32_t s) { return std::pow(state.Cost(s) / scale, kPower); };
  // Cooling to a thousandth, from the more of the bottleneck's energy the more stages there are:
  // for few stages a tenth is hot enough, and more takes moves that are wanted when it is cold.
  const double hottest = std::clamp(static_cast<double>(settings.stages) / 32, 0.1, 0.5);
  for (int64_t move = 0; move < settings.moves; ++move) {
    if (move % kLookAtClock == 0 && stop()) break;
    const auto v = static_cast<NodeId>(random.Below(graph.nodes()));
    const auto [low, high] = state.Range(v);
    if (low == high) continue;
    const int32_t from = state.stages()[v];
    auto to = low + static_cast<int32_t>(random.Below(static_cast<size_t>(high - low)));
    if (to >= from) ++to;
    const double before = energy(from) + energy(to);
    state.Move(v, to);
    const double rise = energy(from) + energy(to) - before;
    const double done = static_cast<double>(move) / static_cast<double>(settings.moves);
    const double temperature = hottest * std::pow(1e-3, done);
    if (rise > 0 && random.Unit() >= std::exp(-rise / temperature)) {
      state.Move(v, from);
      continue;
    }
    if (const double cost = state.Bottleneck(); cost < best_cost) {
      best_cost = cost;
      best = state.stages();
    }
  }
  return best;
}

Order OrderOf(const Graph& graph, const Stages& stages) {
  Keys keys(graph.nodes());
  for (size_t v = 0; v < keys.size(); ++v) keys[v] = -static_cast<double>(stages[v]);
  return KahnOrder(graph, keys);
}

}  // namespace tvm_sched::partition
