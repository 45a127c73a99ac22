#include "search/partition/stage_value.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "search/bitset.h"
#include "search/partition/max_flow.h"

namespace tvm_sched::partition {

namespace {

constexpr std::int64_t kScale = std::int64_t{1}
                                << 20;  // prices of cost are multiples of one over it
constexpr std::int64_t kMostPrice = std::int64_t{1} << 24;  // costs times prices stay below 2^60
constexpr int kCostBits = 32;                               // of all costs together
constexpr std::size_t kStepsBetweenLooks = 64;              // steps between looks
constexpr int kMostPrices = 8;                              // tried at a step

/// The graph in whole numbers, with who reaches whom.
struct Instance {
  std::size_t nodes;
  std::vector<std::int64_t> value, work, transfer;
  std::vector<std::vector<NodeId>> members;  // of each tensor
  std::vector<char> always;                  // whether any stage with a member pays
  std::vector<BitSet> before, after;
  std::vector<std::pair<NodeId, NodeId>> edges;
  std::int64_t limit;

  Instance(const Graph& graph, const StageValueSettings& settings)
      : nodes(graph.nodes()), value(settings.value) {
    double total = 0;
    for (double work : graph.work) total += work;
    for (const Tensor& tensor : graph.tensors) total += tensor.transfer;
    if (!std::isfinite(total))
      throw std::overflow_error("the graph's times add up to no finite number");
    const double unit = std::ldexp(1.0, std::ilogb(std::max(total, 1e-300)) + 1 - kCostBits);
    const auto units = [&](double cost) {
      return static_cast<std::int64_t>(std::floor(cost / unit));
    };
    limit = settings.limit >= total ? units(total) * 4 : units(settings.limit);
    for (double cost : graph.work) work.push_back(units(cost));
    for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      transfer.push_back(units(tensor.transfer));
      members.emplace_back(graph.readers[t].begin(), graph.readers[t].end());
      if (tensor.producer != kNone) members.back().push_back(tensor.producer);
      always.push_back(tensor.producer == kNone || tensor.leaves);
    }
    Reach(graph);
  }

 private:
  void Reach(const Graph& graph) {
    before.assign(nodes, BitSet(nodes));
    after = before;
    std::vector<NodeId> order;
    std::vector<std::size_t> missing(nodes);
    for (NodeId v = 0; v < static_cast<NodeId>(nodes); ++v) {
      missing[v] = graph.predecessors[v].size();
      if (missing[v] == 0) order.push_back(v);
      for (NodeId u : graph.predecessors[v]) edges.emplace_back(u, v);
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      for (NodeId w : graph.successors[order[i]]) {
        before[w].Add(order[i]);
        before[w] |= before[order[i]];
        if (--missing[w] == 0) order.push_back(w);
      }
    }
    for (NodeId v : order) before[v].ForEach([&](NodeId u) { after[u].Add(v); });
  }
};

/// A step of the search: nodes that the stage holds, and nodes that it does not.
struct Choice {
  BitSet in, out, before, after;  // `before` and `after` of any node that it holds
  std::int64_t price;             // of cost, the best at the step above

  explicit Choice(std::size_t nodes)
      : in(nodes), out(nodes), before(nodes), after(nodes), price(kScale) {}

  /// Nodes between the stage and a node: they are in any stage that holds both.
  BitSet Between(const Instance& instance, NodeId v) const {
    BitSet between = after & instance.before[v];
    between |= before & instance.after[v];
    return between;
  }

  void Include(const Instance& instance, NodeId v) {
    BitSet added = Between(instance, v);
    added.Add(v);
    added.ForEach([&](NodeId u) {
      in.Add(u);
      before |= instance.before[u];
      after |= instance.after[u];
    });
  }
};

/// What a set of nodes costs and is worth.
struct Candidate {
  BitSet nodes;
  std::int64_t value = 0, cost = 0;
};

Candidate Priced(const Instance& instance, BitSet nodes) {
  Candidate found{std::move(nodes)};
  found.nodes.ForEach([&](NodeId v) {
    found.value += instance.value[v];
    found.cost += instance.work[v];
  });
  for (std::size_t t = 0; t < instance.members.size(); ++t) {
    const auto inside = static_cast<std::size_t>(
        std::count_if(instance.members[t].begin(), instance.members[t].end(),
                      [&](NodeId v) { return found.nodes.Has(v); }));
    if (inside > 0 && (instance.always[t] || inside < instance.members[t].size())) {
      found.cost += instance.transfer[t];
    }
  }
  return found;
}

/// The minimum cut whose source side is the best set at a price of cost.
class Relaxation {
 public:
  Relaxation(const Instance& instance, const Choice& choice)
      : instance_(instance), choice_(choice) {
    number_.assign(instance.nodes, -1);
    for (NodeId v = 0; v < static_cast<NodeId>(instance.nodes); ++v) {
      if (choice.in.Has(v)) {
        value_ += instance.value[v];
        paid_ += instance.work[v];
      } else if (!choice.out.Has(v)) {
        number_[v] = static_cast<std::int32_t>(free_.size()) + 2;
        free_.push_back(v);
        value_ += instance.value[v];
      }
    }
    size_ = free_.size() + 2;
    for (NodeId v : free_) Arc(kSource, number_[v], instance.value[v], false);
    for (NodeId v : free_) Arc(number_[v], kSink, instance.work[v], true);
    for (std::size_t t = 0; t < instance.members.size(); ++t) Transfer(t);
    for (const auto& [u, v] : instance.edges) {
      if (number_[u] < 0 || number_[v] < 0) continue;
      if (choice.before.Has(u) && choice.before.Has(v)) Tie(number_[u], number_[v]);
      if (choice.after.Has(u) && choice.after.Has(v)) Tie(number_[v], number_[u]);
    }
  }

  bool decided() const { return free_.empty(); }
  const std::vector<NodeId>& open() const { return free_; }
  /// Costs that any set has.
  std::int64_t paid() const { return paid_; }

  /// No set is worth more than this over `kScale`; `found` is one that is worth it, but for
  /// the limit.
  std::int64_t Bound(std::int64_t price, Candidate& found) const {
    MaxFlow flow(size_);
    for (const Arcs& arc : arcs_) {
      flow.Add(arc.from, arc.to, arc.priced ? arc.capacity * price : arc.capacity);
    }
    const std::int64_t cut = flow.Solve(kSource, kSink);
    BitSet nodes = choice_.in;
    for (NodeId v : free_) {
      if (flow.OnSourceSide(number_[v])) nodes.Add(v);
    }
    found = Priced(instance_, std::move(nodes));
    return value_ * kScale - paid_ * price - cut + instance_.limit * price;
  }

 private:
  static constexpr std::int32_t kSource = 0, kSink = 1;

  struct Arcs {
    std::int32_t from, to;
    std::int64_t capacity;
    bool priced;  // the capacity is a cost
  };

  void Arc(std::int32_t from, std::int32_t to, std::int64_t capacity, bool cost) {
    if (capacity > 0) arcs_.push_back({from, to, cost ? capacity : capacity * kScale, cost});
  }
  void Tie(std::int32_t from, std::int32_t to) {
    arcs_.push_back({from, to, MaxFlow::kInfinite, false});
  }

  void Transfer(std::size_t t) {
    const std::int64_t cost = instance_.transfer[t];
    if (cost == 0) return;
    std::vector<std::int32_t> open;
    bool in = false, out = instance_.always[t];
    for (NodeId v : instance_.members[t]) {
      in |= choice_.in.Has(v);
      out |= choice_.out.Has(v);
      if (number_[v] >= 0) open.push_back(number_[v]);
    }
    if (in && out) {
      paid_ += cost;
    } else if (open.empty() || (open.size() == 1 && !in && !out)) {
      return;
    } else if (in) {  // paid where an open member is not in the stage
      Arc(kSource, open.size() == 1 ? open[0] : Side(open, false), cost, true);
    } else if (out) {
      Arc(open.size() == 1 ? open[0] : Side(open, true), kSink, cost, true);
    } else if (open.size() == 2) {
      Arc(open[0], open[1], cost, true);
      Arc(open[1], open[0], cost, true);
    } else {
      const std::int32_t into = Side(open, true);
      Arc(into, Side(open, false), cost, true);
    }
  }

  /// A node that is on the source's side if any of some nodes is, or, where not `any`, only
  /// if all are.
  std::int32_t Side(const std::vector<std::int32_t>& nodes, bool any) {
    const auto side = static_cast<std::int32_t>(size_++);
    for (std::int32_t v : nodes) any ? Tie(v, side) : Tie(side, v);
    return side;
  }

  const Instance& instance_;
  const Choice& choice_;
  std::vector<std::int32_t> number_;  // in the network; -1: decided
  std::vector<NodeId> free_;
  std::vector<Arcs> arcs_;
  std::size_t size_;
  std::int64_t value_ = 0, paid_ = 0;
};

class Search {
 public:
  Search(const Graph& graph, const StageValueSettings& settings, const std::function<bool()>& stop)
      : instance_(graph, settings), settings_(settings), stop_(stop) {
    result_.next = settings.first;
  }

  StageValue Run() {
    std::vector<NodeId> order(instance_.nodes);
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::int64_t> alone = instance_.work;
    for (std::size_t t = 0; t < instance_.members.size(); ++t) {
      for (NodeId v : instance_.members[t]) alone[v] += instance_.transfer[t];
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](NodeId a, NodeId b) { return alone[a] > alone[b]; });
    Choice choice(instance_.nodes);
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i >= settings_.first) {
        if (result_.steps >= settings_.steps) break;
        Choice dearest = choice;
        dearest.Include(instance_, order[i]);
        found_ = false;
        Branch(std::move(dearest));
        if (ended_) break;
        result_.next = i + 1;
      }
      choice.out.Add(order[i]);
    }
    return std::move(result_);
  }

 private:
  /// Leaves out what cannot be in the stage any more.
  bool Tighten(Choice& choice) const {
    if (choice.in.Intersects(choice.out)) return false;
    const std::int64_t cost = Relaxation(instance_, choice).paid();
    if (cost > instance_.limit) return false;
    for (NodeId v = 0; v < static_cast<NodeId>(instance_.nodes); ++v) {
      if (choice.in.Has(v) || choice.out.Has(v)) continue;
      const BitSet between = choice.Between(instance_, v);
      std::int64_t work = instance_.work[v];
      between.ForEach([&](NodeId u) { work += choice.in.Has(u) ? 0 : instance_.work[u]; });
      if (between.Intersects(choice.out) || cost + work > instance_.limit) choice.out.Add(v);
    }
    return true;
  }

  void Branch(Choice choice) {
    if (found_ || ended_) return;
    if (result_.steps >= settings_.most || (++result_.steps % kStepsBetweenLooks == 0 && stop_())) {
      ended_ = true;
      return;
    }
    if (!Tighten(choice)) return;
    const Relaxation relaxation(instance_, choice);
    Candidate low = Priced(instance_, choice.in);  // within the limit
    Offer(low);
    BitSet all = choice.in;
    for (NodeId v : relaxation.open()) all.Add(v);
    Candidate high = Priced(instance_, std::move(all));  // beyond it
    if (high.value <= settings_.target) return;
    Offer(high);
    if (found_ || relaxation.decided()) return;
    std::int64_t best = 0, best_price = choice.price;
    std::int64_t price = choice.price;
    for (int i = 0; i < kMostPrices; ++i) {
      Candidate next{BitSet(instance_.nodes)};
      const std::int64_t bound = relaxation.Bound(price, next);
      if (bound / kScale <= settings_.target) return;
      Offer(next);
      if (found_) return;
      if (i == 0 || bound < best) best = bound, best_price = price;
      (next.cost > instance_.limit ? high : low) = std::move(next);
      const std::int64_t dearer = high.cost - low.cost;
      if (dearer <= 0) break;
      const std::int64_t crossing =
          std::clamp<std::int64_t>((high.value - low.value) * kScale / dearer, 1, kMostPrice);
      if (crossing == price) break;
      price = crossing;
    }
    choice.price = best_price;
    const NodeId v = Branched(relaxation, low, high);
    Choice with = choice;
    with.Include(instance_, v);
    Branch(std::move(with));
    choice.out.Add(v);
    Branch(std::move(choice));
  }

  /// The node of most work in which the two sets differ, or of all.
  NodeId Branched(const Relaxation& relaxation, const Candidate& low, const Candidate& high) const {
    NodeId chosen = kNone;
    bool chosen_differs = false;
    for (NodeId v : relaxation.open()) {
      const bool differs = low.nodes.Has(v) != high.nodes.Has(v);
      if (chosen == kNone || differs > chosen_differs ||
          (differs == chosen_differs && instance_.work[v] > instance_.work[chosen])) {
        chosen = v;
        chosen_differs = differs;
      }
    }
    return chosen;
  }

  void Offer(const Candidate& candidate) {
    if (found_ || candidate.value <= settings_.target || candidate.cost > instance_.limit) return;
    std::vector<NodeId> nodes;
    Choice closure(instance_.nodes);
    candidate.nodes.ForEach([&](NodeId v) {
      nodes.push_back(v);
      closure.before |= instance_.before[v];
      closure.after |= instance_.after[v];
    });
    bool convex = true;
    (closure.before & closure.after).ForEach([&](NodeId v) { convex &= candidate.nodes.Has(v); });
    if (!convex) return;
    found_ = true;
    result_.better.push_back(std::move(nodes));
  }

  const Instance instance_;
  const StageValueSettings& settings_;
  const std::function<bool()>& stop_;
  StageValue result_;
  bool found_ = false, ended_ = false;
};

}  // namespace

StageValue MostValuableStages(const Graph& graph, const StageValueSettings& settings,
                              const std::function<bool()>& stop) {
  return Search(graph, settings, stop).Run();
}

}  // namespace tvm_sched::partition
