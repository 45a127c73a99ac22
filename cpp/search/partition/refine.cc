#include "search/partition/refine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "search/partition/orders.h"
#include "search/random.h"

namespace tvm_sched::partition {

namespace {

constexpr std::int64_t kMovesBetweenLooks = 4096;
constexpr std::int64_t kCool = 64;  // moves at the same temperature
constexpr double kColdest = 5e-3;   // last temperature relative to the first one
constexpr double kExchange = 0.5;   // part of the refused moves that get a second one in exchange
constexpr double kNeverAccepted = 40;  // rise over temperature of which no random number is left

/// What a stage has to do, and its energy.
struct Load {
  double time = 0, parameters = 0, energy = 0;
};

/// A node's move to another stage, with both stages' loads after it.
struct Move {
  NodeId node;
  std::int32_t from, to;
  Load left, reached;
};

/// An assignment with the loads of its stages, kept up to date from move to move.
class State {
 public:
  State(const Graph& graph, Stages stages, std::size_t count)
      : graph_(graph),
        count_(count),
        stage_(std::move(stages)),
        loads_(count),
        readers_(graph.tensors.size() * count, 0),
        members_(count),
        place_(graph.nodes()) {
    for (std::size_t v = 0; v < graph.nodes(); ++v) {
      loads_[stage_[v]].time += graph.work[v];
      loads_[stage_[v]].parameters += graph.parameters[v];
      Enter(static_cast<NodeId>(v));
    }
    for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
      for (NodeId reader : graph.readers[t]) ++readers_[t * count + stage_[reader]];
      for (std::size_t s = 0; s < count; ++s) {
        if (Pays(t, static_cast<std::int32_t>(s))) loads_[s].time += graph.tensors[t].transfer;
      }
    }
    Scale(Bottleneck());
  }

  /// Makes 1 the energy of a stage of this cost, which is above 0.
  void Scale(double cost) {
    scale_ = cost;
    for (Load& load : loads_) load.energy = Energy(load);
  }

  const Stages& stages() const { return stage_; }
  const std::vector<NodeId>& members(std::int32_t stage) const { return members_[stage]; }

  double Cost(const Load& load) const {
    if (!graph_.limited()) return load.time;
    return load.time + std::max(load.parameters - graph_.memory, 0.0) * graph_.overflow_time;
  }

  double Bottleneck() const {
    double worst = 0;
    for (const Load& load : loads_) worst = std::max(worst, Cost(load));
    return worst;
  }

  /// Stages to which a node may go: not before what it reads, not behind its readers.
  std::pair<std::int32_t, std::int32_t> Range(NodeId v) const {
    std::int32_t low = 0, high = static_cast<std::int32_t>(count_) - 1;
    for (NodeId u : graph_.predecessors[v]) low = std::max(low, stage_[u]);
    for (NodeId w : graph_.successors[v]) high = std::min(high, stage_[w]);
    return {low, high};
  }

  /// Prices a move to another stage. A tensor's other stages pay as before.
  Move Price(NodeId v, std::int32_t to) const {
    const std::int32_t from = stage_[v];
    Load left = loads_[from], reached = loads_[to];
    left.time -= graph_.work[v];
    reached.time += graph_.work[v];
    left.parameters -= graph_.parameters[v];
    reached.parameters += graph_.parameters[v];
    for (const std::int32_t t : graph_.read[v]) {
      const Tensor& tensor = graph_.tensors[t];
      const std::int32_t home = tensor.producer == kNone ? kNone : stage_[tensor.producer];
      const std::int32_t here = Readers(t, from), there = Readers(t, to), all = AllReaders(t);
      if (home == from) {
        if (here == all && !tensor.leaves) left.time += tensor.transfer;
      } else if (here == 1) {
        left.time -= tensor.transfer;
      }
      if (home == to) {
        if (there == all - 1 && !tensor.leaves) reached.time -= tensor.transfer;
      } else if (there == 0) {
        reached.time += tensor.transfer;
      }
    }
    for (const std::int32_t t : graph_.made[v]) {
      const Tensor& tensor = graph_.tensors[t];
      const std::int32_t here = Readers(t, from), there = Readers(t, to), all = AllReaders(t);
      left.time += tensor.transfer * ((here > 0) - (tensor.leaves || here < all));
      reached.time += tensor.transfer * ((tensor.leaves || there < all) - (there > 0));
    }
    left.energy = Energy(left);
    reached.energy = Energy(reached);
    return {v, from, to, left, reached};
  }

  /// By how much a move raises the energy.
  double Rise(const Move& move) const {
    return move.left.energy + move.reached.energy - loads_[move.from].energy -
           loads_[move.to].energy;
  }

  /// Moves a node; returns the move that undoes it.
  Move Make(const Move& move) {
    const Move back{move.node, move.to, move.from, loads_[move.to], loads_[move.from]};
    for (const std::int32_t t : graph_.read[move.node]) {
      --readers_[static_cast<std::size_t>(t) * count_ + move.from];
      ++readers_[static_cast<std::size_t>(t) * count_ + move.to];
    }
    std::vector<NodeId>& old = members_[move.from];
    place_[old.back()] = place_[move.node];
    old[place_[move.node]] = old.back();
    old.pop_back();
    stage_[move.node] = move.to;
    Enter(move.node);
    loads_[move.from] = move.left;
    loads_[move.to] = move.reached;
    return back;
  }

 private:
  void Enter(NodeId v) {
    place_[v] = members_[stage_[v]].size();
    members_[stage_[v]].push_back(v);
  }

  std::int32_t Readers(std::size_t tensor, std::int32_t stage) const {
    return readers_[tensor * count_ + static_cast<std::size_t>(stage)];
  }

  std::int32_t AllReaders(std::size_t tensor) const {
    return static_cast<std::int32_t>(graph_.readers[tensor].size());
  }

  /// Whether a stage gets or sends a tensor.
  bool Pays(std::size_t t, std::int32_t stage) const {
    const Tensor& tensor = graph_.tensors[t];
    const std::int32_t here = Readers(t, stage);
    if (tensor.producer == kNone || stage_[tensor.producer] != stage) return here > 0;
    return tensor.leaves || here < AllReaders(t);
  }

  /// The eighth power of a stage's cost relative to the scale.
  double Energy(const Load& load) const {
    const double ratio = Cost(load) / scale_, square = ratio * ratio, fourth = square * square;
    return fourth * fourth;
  }

  const Graph& graph_;
  const std::size_t count_;
  double scale_ = 1;
  Stages stage_;
  std::vector<Load> loads_;
  std::vector<std::int32_t> readers_;         // of each tensor in each stage
  std::vector<std::vector<NodeId>> members_;  // of each stage
  std::vector<std::size_t> place_;            // of each node among them
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
  // For few stages a tenth of the bottleneck's energy is hot enough, and more takes moves that are
  // wanted when it is cold.
  const double hottest = std::clamp(static_cast<double>(settings.stages) / 32, 0.1, 0.5);
  double temperature = hottest;
  const auto accepts = [&](double rise) {
    if (rise <= 0) return true;
    return rise < kNeverAccepted * temperature && random.Unit() < std::exp(-rise / temperature);
  };
  for (std::int64_t count = 0; count < settings.moves; ++count) {
    if (count % kMovesBetweenLooks == 0) {
      if (stop()) break;
      state.Scale(best_cost);  // so that energies stay near 1 for the bottleneck
    }
    if (count % kCool == 0) {
      const double done = static_cast<double>(count) / static_cast<double>(settings.moves);
      temperature = hottest * std::pow(kColdest, done);
    }
    const auto v = static_cast<NodeId>(random.ShareOf(graph.nodes()));
    const auto [low, high] = state.Range(v);
    if (low == high) continue;
    const std::int32_t from = state.stages()[v];
    auto to = low + static_cast<std::int32_t>(random.ShareOf(static_cast<std::size_t>(high - low)));
    if (to >= from) ++to;
    const Move move = state.Price(v, to);
    const double rise = state.Rise(move);
    double dearer = std::max(state.Cost(move.left), state.Cost(move.reached));
    if (accepts(rise)) {
      state.Make(move);
    } else {
      if (random.Unit() >= kExchange || state.members(to).empty()) continue;
      const NodeId u = state.members(to)[random.ShareOf(state.members(to).size())];
      const Move back = state.Make(move);
      const auto [lowest, highest] = state.Range(u);
      if (from < lowest || from > highest) {
        state.Make(back);
        continue;
      }
      const Move exchange = state.Price(u, from);
      if (!accepts(rise + state.Rise(exchange))) {
        state.Make(back);
        continue;
      }
      state.Make(exchange);
      dearer = std::max(state.Cost(exchange.left), state.Cost(exchange.reached));
    }
    if (dearer >= best_cost) continue;
    if (const double cost = state.Bottleneck(); cost < best_cost) {
      best_cost = cost;
      best = state.stages();
    }
  }
  return best;
}

Order OrderOf(const Graph& graph, const Stages& stages) {
  Keys keys(graph.nodes());
  for (std::size_t v = 0; v < keys.size(); ++v) keys[v] = -static_cast<double>(stages[v]);
  return KahnOrder(graph, keys);
}

}  // namespace tvm_sched::partition
