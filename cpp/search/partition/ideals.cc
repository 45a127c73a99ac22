#include "search/partition/ideals.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "search/bitset.h"

namespace tvm_sched::partition {

namespace {

constexpr std::size_t kLookAtClock = 64;  // sets between looks

/// All ideals, smaller ones first, and for each those with one node more.
struct Lattice {
  std::vector<std::vector<std::pair<NodeId, std::uint32_t>>> larger;
  bool complete = true, stopped = false;

  Lattice(const Graph& graph, std::size_t most, const std::function<bool()>& stop) {
    std::unordered_map<BitSet, std::uint32_t, BitSet::Hash> number;
    std::vector<const BitSet*> sets;  // keys of the map, which stay where they are
    const auto add = [&](BitSet set) {
      const auto [place, isnew] = number.emplace(std::move(set), sets.size());
      if (isnew) {
        sets.push_back(&place->first);
        larger.emplace_back();
      }
      return place->second;
    };
    add(BitSet(graph.nodes()));
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if (i % kLookAtClock == kLookAtClock - 1 && stop()) {
        stopped = true;
        return;
      }
      for (NodeId v = 0; v < static_cast<NodeId>(graph.nodes()); ++v) {
        const BitSet& set = *sets[i];
        const std::span<const NodeId> before = graph.predecessors[v];
        const auto inside = [&](NodeId u) { return set.Has(u); };
        if (inside(v) || !std::all_of(before.begin(), before.end(), inside)) continue;
        BitSet next = set;
        next.Add(v);
        const std::uint32_t id = add(std::move(next));
        larger[i].emplace_back(v, id);
      }
      if (sets.size() > most) {
        complete = false;
        return;
      }
    }
  }
};

/// The cost of a growing and shrinking stage.
class Stage {
 public:
  explicit Stage(const Graph& graph)
      : graph_(graph), readers_(graph.tensors.size(), 0), made_(graph.tensors.size(), 0) {}

  double work() const { return work_; }
  double Cost() const {
    const double overflow =
        graph_.limited() ? std::max(parameters_ - graph_.memory, 0.0) * graph_.overflow_time : 0;
    return work_ + transfers_ + overflow;
  }

  void Add(NodeId v) { Change(v, 1); }
  void Remove(NodeId v) { Change(v, -1); }

 private:
  void Change(NodeId v, std::int32_t sign) {
    for (std::int32_t t : graph_.read[v]) {
      transfers_ -= Transfer(t);
      readers_[t] += sign;
      transfers_ += Transfer(t);
    }
    for (std::int32_t t : graph_.made[v]) {
      transfers_ -= Transfer(t);
      made_[t] += sign;
      transfers_ += Transfer(t);
    }
    work_ += sign * graph_.work[v];
    parameters_ += sign * graph_.parameters[v];
  }

  /// What the stage pays for a tensor that it gets or sends.
  double Transfer(std::int32_t t) const {
    const Tensor& tensor = graph_.tensors[t];
    const bool elsewhere =
        tensor.leaves || readers_[t] < static_cast<std::int32_t>(graph_.readers[t].size());
    return (made_[t] ? elsewhere : readers_[t] > 0) ? tensor.transfer : 0;
  }

  const Graph& graph_;
  std::vector<std::int32_t> readers_, made_;  // of each tensor, inside the stage
  double work_ = 0, transfers_ = 0, parameters_ = 0;
};

/// Least bottleneck up to each ideal in each number of stages.
class Table {
 public:
  Table(const Graph& graph, const Lattice& lattice, const IdealSettings& settings)
      : graph_(graph),
        lattice_(lattice),
        settings_(settings),
        ideals_(lattice.larger.size()),
        best_((settings.stages + 1) * ideals_, std::numeric_limits<double>::infinity()),
        from_(best_.size(), 0),
        seen_(ideals_, kUnseen),
        stage_(graph) {
    best_[0] = 0;
  }

  /// Tries every stage that begins after an ideal.
  void Extend(std::uint32_t first) {
    bool reached = false;
    for (std::size_t j = 0; j < settings_.stages; ++j) reached |= Best(j, first) < settings_.limit;
    if (reached) Grow(first);
  }

  IdealPartition Result() const {
    IdealPartition result;
    result.ideals = ideals_;
    const auto all = static_cast<std::uint32_t>(ideals_ - 1);
    std::size_t used = 0;
    for (std::size_t j = 0; j <= settings_.stages; ++j) {
      if (Best(j, all) < result.cost) result.cost = Best(j, all), used = j;
    }
    if (result.cost < std::numeric_limits<double>::infinity()) Trace(used, all, result.stages);
    return result;
  }

 private:
  static constexpr std::uint32_t kUnseen = static_cast<std::uint32_t>(-1);

  double Best(std::size_t stages, std::uint32_t ideal) const {
    return best_[stages * ideals_ + ideal];
  }

  /// Depth first through the ideals above `first`, each once, with an explicit stack.
  void Grow(std::uint32_t first) {
    struct Frame {
      std::uint32_t ideal;
      NodeId added;
      std::size_t next;
    };
    std::vector<Frame> path{{first, kNone, 0}};
    seen_[first] = first;
    while (!path.empty()) {
      Frame& top = path.back();
      const auto& larger = lattice_.larger[top.ideal];
      if (top.next == larger.size()) {
        if (top.added != kNone) stage_.Remove(top.added);
        path.pop_back();
        continue;
      }
      const auto [v, id] = larger[top.next++];
      if (seen_[id] == first || stage_.work() + graph_.work[v] >= settings_.limit) continue;
      seen_[id] = first;
      stage_.Add(v);
      Offer(first, id, stage_.Cost());
      path.push_back({id, v, 0});
    }
  }

  void Offer(std::uint32_t first, std::uint32_t ideal, double cost) {
    if (cost >= settings_.limit) return;
    for (std::size_t j = 0; j < settings_.stages; ++j) {
      const double bottleneck = std::max(Best(j, first), cost);
      double& best = best_[(j + 1) * ideals_ + ideal];
      if (bottleneck < best) {
        best = bottleneck;
        from_[(j + 1) * ideals_ + ideal] = first;
      }
    }
  }

  /// The nodes of each stage lie on any path through the lattice from its ideal to the next.
  void Trace(std::size_t stages, std::uint32_t ideal, Stages& assignment) const {
    assignment.assign(graph_.nodes(), 0);
    std::vector<std::pair<std::uint32_t, NodeId>> smaller(ideals_, {0, kNone});
    for (std::uint32_t i = 0; i < ideals_; ++i) {
      for (const auto& [v, id] : lattice_.larger[i]) smaller[id] = {i, v};
    }
    std::vector<std::int32_t> last(graph_.nodes(), 0);
    for (; stages > 0; --stages) {
      const std::uint32_t before = from_[stages * ideals_ + ideal];
      // Nodes of the ideal that are not in `before`: strip both to the empty set.
      for (std::uint32_t i = ideal; i != 0; i = smaller[i].first) ++last[smaller[i].second];
      for (std::uint32_t i = before; i != 0; i = smaller[i].first) --last[smaller[i].second];
      for (std::size_t v = 0; v < last.size(); ++v) {
        if (last[v] > 0) assignment[v] = static_cast<std::int32_t>(stages) - 1;
        last[v] = 0;
      }
      ideal = before;
    }
  }

  const Graph& graph_;
  const Lattice& lattice_;
  const IdealSettings& settings_;
  const std::size_t ideals_;
  std::vector<double> best_;
  std::vector<std::uint32_t> from_, seen_;
  Stage stage_;
};

}  // namespace

IdealPartition PartitionByIdeals(const Graph& graph, const IdealSettings& settings,
                                 const std::function<bool()>& stop) {
  const Lattice lattice(graph, settings.most_ideals, stop);
  IdealPartition result;
  result.ideals = lattice.larger.size();
  result.stopped = lattice.stopped;
  if (!lattice.complete || lattice.stopped) return result;
  Table table(graph, lattice, settings);
  for (std::uint32_t i = 0; i < lattice.larger.size(); ++i) {
    if (stop()) {
      result.stopped = true;
      return result;
    }
    table.Extend(i);
  }
  return table.Result();
}

}  // namespace tvm_sched::partition
