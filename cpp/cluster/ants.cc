#include "cluster/ants.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "search/random.h"

namespace tvm_sched::cluster {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();
constexpr std::size_t kLongestWalk =
    6;  // links between switches, where the shortest way is no longer
constexpr std::size_t kUnchanged = 5;  // generations after which sub-agents that find the same end

/// A solution and its cost.
struct Ant {
  Embedding embedding;
  double cost = kFar;
};

class Colony {
 public:
  Colony(const Cluster& cluster, const LinkCosts& link_costs, const Residual& residual,
         const Chain& chain, const AntSettings& settings)
      : cluster_(cluster),
        residual_(residual),
        chain_(chain),
        settings_(settings),
        random_(settings.seed),
        link_costs_(link_costs),
        gpu_cost_(GpuCostsOf(residual)) {
    SetLinkCosts(gpu_cost_);
    const std::vector<std::int64_t> all(cluster.links.size(), 1);
    distance_.resize(cluster.switches());
    for (SwitchId s = 0; s < std::ssize(distance_); ++s) distance_[s] = Distances(cluster, all, s);
  }

  std::optional<Embedding> Search(const Interrupt& interrupt) {
    Ant best;
    const std::size_t most = settings_.most_stages == 0 ? chain_.blocks() : settings_.most_stages;
    for (std::size_t stages = std::max<std::size_t>(1, settings_.least_stages); stages <= most;
         ++stages) {
      if (CheapestGpus(stages) >= best.cost) break;
      gpu_pheromone_.assign(cluster_.pools.size(), settings_.initial);
      link_pheromone_.assign(cluster_.links.size(), settings_.initial);
      Ant current;  // the best of this many stages
      for (std::size_t g = 0; g < settings_.generations; ++g) {
        interrupt();
        const double limit = std::min(best.cost, current.cost);
        Ant first = Generation(stages, limit, g == 1 && limit == kFar && !settings_.free_walks);
        if (first.cost < current.cost) current = std::move(first);
        Evaporate(current, current.cost, &gpu_pheromone_, &link_pheromone_);
      }
      const bool better = current.cost < best.cost;
      if (better) best = std::move(current);
      if (settings_.first_rise && !better && best.cost < kFar) break;
    }
    if (best.cost == kFar) return std::nullopt;
    return std::move(best.embedding);
  }

 private:
  /// Costs of GPUs with what is free; for PipeEdge strong ones attract, if little.
  std::vector<double> GpuCostsOf(const Residual& free) const {
    if (!settings_.fastest) return GpuCosts(cluster_, free);
    std::vector<double> costs;
    for (const Pool& pool : cluster_.pools) {
      costs.push_back(1 + 1 / GpuPower(cluster_.kinds[pool.kind]));
    }
    return costs;
  }

  void SetLinkCosts(const std::vector<double>& gpu_costs) {
    access_cost_.assign(cluster_.pools.size(), 0);
    if (settings_.fastest) {
      link_cost_.assign(cluster_.links.size(), 1);
    } else if (settings_.pool_links) {
      LinkCosts::OfPools costs = link_costs_.OverPools(cluster_, residual_, gpu_costs);
      link_cost_ = std::move(costs.links);
      access_cost_ = std::move(costs.access);
    } else {
      link_cost_ = link_costs_(cluster_, residual_, gpu_costs);
      if (settings_.access_links) {
        access_cost_ = link_costs_.OfAccessLinks(cluster_, residual_, gpu_costs);
      }
    }
  }

  /// No solution of this many stages costs less; infinity where there are too few GPUs.
  double CheapestGpus(std::size_t stages) const {
    const auto count = static_cast<std::int64_t>(stages);
    if (std::accumulate(residual_.gpus.begin(), residual_.gpus.end(), std::int64_t{0}) < count) {
      return kFar;
    }
    if (settings_.fastest) return 0;
    if (settings_.falling_costs) {
      // The last of the stages is the cheapest if all before it were of its rack.
      Residual last = residual_;
      for (std::int64_t& gpus : last.gpus)
        gpus = std::max<std::int64_t>(gpus - count + 1, gpus > 0);
      double least = kFar;
      const std::vector<double> costs = GpuCosts(cluster_, last);
      for (std::size_t p = 0; p < costs.size(); ++p) {
        if (residual_.gpus[p] > 0) least = std::min(least, costs[p]);
      }
      return static_cast<double>(count) * least;
    }
    std::vector<PoolId> order(cluster_.pools.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](PoolId a, PoolId b) { return gpu_cost_[a] < gpu_cost_[b]; });
    double cost = 0;
    std::int64_t left = count;
    for (PoolId p : order) {
      const std::int64_t taken = std::min(left, residual_.gpus[p]);
      cost += static_cast<double>(taken) * gpu_cost_[p];
      left -= taken;
    }
    return cost;
  }

  /// The best ant of a generation, if it is cheaper than the limit.
  ///
  /// \param together Each ant keeps to one rack, as in the authors' simulator where nothing has
  /// been found before; the paper does not tell of it.
  Ant Generation(std::size_t stages, double limit, bool together) {
    gpu_attraction_ = Attractions(gpu_pheromone_, gpu_cost_);
    link_attraction_ = Attractions(link_pheromone_, link_cost_);
    Ant best;
    for (std::size_t a = 0; a < settings_.agents; ++a) {
      Ant ant = Send(stages, std::min(limit, best.cost), together);
      if (ant.cost < best.cost) best = std::move(ant);
    }
    return best;
  }

  Ant Send(std::size_t stages, double limit, bool together) {
    Ant ant{{}, 0};
    if (!ChooseGpus(stages, limit, together, &ant)) return {};
    std::vector<KindId> kinds;
    for (PoolId p : ant.embedding.pools) kinds.push_back(cluster_.pools[p].kind);
    if (settings_.sub_agents) return CanServe(kinds) ? SendSubAgents(ant, kinds, limit) : Ant{};
    // Whichever check fails more often comes first: the cost once there is a limit.
    const bool limited = limit < kFar;
    if (limited && !Walk(limit, link_attraction_, &ant)) return {};
    if (!CanServe(kinds)) return {};
    if (!limited && !Walk(limit, link_attraction_, &ant)) return {};
    return Cut(kinds, limit, &ant) ? ant : Ant{};
  }

  /// The cheapest walk between an ant's GPUs that a colony of its own finds.
  ///
  /// Its pheromones lie on links alone and end with it; it ends early where the same cost comes
  /// again and again.
  Ant SendSubAgents(const Ant& ant, const std::vector<KindId>& kinds, double limit) {
    std::vector<double> pheromone(cluster_.links.size(), settings_.initial);
    Ant best;
    if (!settings_.fastest && ant.cost + CheapestLinks(ant.embedding.pools) >= limit) return best;
    std::size_t unchanged = 0;
    for (std::size_t g = 0; g < settings_.generations && unchanged < kUnchanged; ++g) {
      const double before = best.cost;
      const std::vector<double> attraction = Attractions(pheromone, link_cost_);
      for (std::size_t a = 0; a < settings_.agents; ++a) {
        const double most = std::min(limit, best.cost);
        Ant walker = ant;
        if (Walk(most, attraction, &walker) && Cut(kinds, most, &walker)) best = std::move(walker);
      }
      if (best.cost < kFar && best.embedding.Hops() == 0) break;  // there is no other walk
      unchanged = best.cost == before && best.cost < kFar ? unchanged + 1 : 0;
      Evaporate(best, settings_.fastest ? best.cost : best.cost - ant.cost, nullptr, &pheromone);
    }
    return best;
  }

  /// No walk between these pools costs less.
  double CheapestLinks(const std::vector<PoolId>& pools) const {
    double cost = 0;
    for (std::size_t s = 1; s < pools.size(); ++s) {
      cost += AccessCost(pools[s - 1], pools[s]) +
              CheapestWalk(cluster_.pools[pools[s - 1]].at, cluster_.pools[pools[s]].at);
    }
    return cost;
  }

  /// What the links cost that join two GPUs to their switches; where pools are joined, not GPUs,
  /// data stays within a pool.
  double AccessCost(PoolId from, PoolId to) const {
    return from == to && settings_.pool_links ? 0 : access_cost_[from] + access_cost_[to];
  }

  /// The least sum of link costs from a switch to another: Dijkstra.
  double CheapestWalk(SwitchId from, SwitchId to) const {
    std::vector<double> cost(cluster_.switches(), kFar);
    std::vector<bool> known(cluster_.switches());
    cost[from] = 0;
    while (true) {
      SwitchId at = -1;
      for (SwitchId s = 0; s < std::ssize(cost); ++s) {
        if (!known[s] && cost[s] < kFar && (at < 0 || cost[s] < cost[at])) at = s;
      }
      if (at < 0 || at == to) return cost[to];
      known[at] = true;
      for (const Arc& arc : cluster_.arcs[at]) {
        if (residual_.fibres[arc.link] > 0) {
          cost[arc.to] = std::min(cost[arc.to], cost[at] + link_cost_[arc.link]);
        }
      }
    }
  }

  /// Gives an ant the best cut for its GPUs and circuits, if one is within the limits.
  bool Cut(const std::vector<KindId>& kinds, double limit, Ant* ant) {
    std::vector<std::int64_t> key(kinds.begin(), kinds.end());
    for (const Route& route : ant->embedding.routes) {
      key.insert(key.end(), {route.head.count, route.bandwidth.rate});
    }
    auto [at, fresh] = cuts_.try_emplace(std::move(key));
    if (fresh) at->second = BestSplit(cluster_, chain_, kinds, ant->embedding.routes);
    if (!at->second) return false;
    ant->embedding.split = *at->second;
    if (settings_.fastest) ant->cost = static_cast<double>(ant->embedding.split.cycle.count) / 1e6;
    return ant->cost < limit;
  }

  /// A pool for each stage.
  ///
  /// A pool is as likely as its free GPUs together, or as one of them where pools are chosen.
  bool ChooseGpus(std::size_t stages, double limit, bool together, Ant* ant) {
    Residual free = residual_;
    std::vector<double> costs = gpu_cost_;
    std::vector<double> attraction = gpu_attraction_;
    weights_.resize(cluster_.pools.size());
    for (std::size_t s = 0; s < stages; ++s) {
      for (std::size_t p = 0; p < weights_.size(); ++p) {
        const bool open =
            free.gpus[p] > 0 &&
            (!together || (s == 0 ? free.gpus[p] >= static_cast<std::int64_t>(stages)
                                  : p == static_cast<std::size_t>(ant->embedding.pools[0])));
        const double many = settings_.pool_choice ? 1 : static_cast<double>(free.gpus[p]);
        weights_[p] = open ? many * attraction[p] : 0;
      }
      const std::optional<std::size_t> chosen = Draw();
      if (!chosen) return false;
      if (!settings_.fastest) ant->cost += costs[*chosen];
      if (ant->cost >= limit) return false;
      --free.gpus[*chosen];
      ant->embedding.pools.push_back(static_cast<PoolId>(*chosen));
      if (settings_.falling_costs && !settings_.fastest) {
        costs = GpuCosts(cluster_, free);
        attraction = Attractions(gpu_pheromone_, costs);
      }
    }
    if (settings_.pool_links && settings_.falling_costs) SetLinkCosts(costs);
    return true;
  }

  /// Whether some cut is within the limits over the fastest route; most ants fail here.
  bool CanServe(const std::vector<KindId>& kinds) {
    auto [at, fresh] = can_serve_.try_emplace(kinds);
    if (fresh) {
      const std::vector<Route> routes(kinds.size() - 1, FastestRoute(cluster_));
      at->second = BestSplit(cluster_, chain_, kinds, routes).has_value();
    }
    return at->second;
  }

  /// Links between an ant's GPUs, if they cost no more than the limit.
  bool Walk(double limit, const std::vector<double>& attraction, Ant* ant) {
    std::vector<std::int64_t> fibres = residual_.fibres;
    for (std::size_t s = 1; s < ant->embedding.pools.size(); ++s) {
      const PoolId from = ant->embedding.pools[s - 1], to = ant->embedding.pools[s];
      std::optional<std::vector<LinkId>> links =
          WalkTo(cluster_.pools[from].at, cluster_.pools[to].at, fibres, attraction);
      if (!links) return false;
      double cost = AccessCost(from, to);
      for (LinkId l : *links) {
        --fibres[l];
        cost += link_cost_[l];
      }
      if (!settings_.fastest) ant->cost += cost;
      if (ant->cost >= limit) return false;
      ant->embedding.routes.push_back(MakeRoute(cluster_, from, to, std::move(*links)));
    }
    return true;
  }

  /// A random walk that passes no switch twice.
  ///
  /// Unless walks are free, it has at most `kLongestWalk` links and steps to its aim when that is
  /// next, but not where sub-agents seek ways that cost less.
  std::optional<std::vector<LinkId>> WalkTo(SwitchId at, SwitchId aim,
                                            const std::vector<std::int64_t>& fibres,
                                            const std::vector<double>& attraction) {
    const std::vector<std::int32_t>& far = distance_[aim];
    const std::size_t most =
        settings_.free_walks
            ? cluster_.switches()
            : std::max<std::size_t>(kLongestWalk, static_cast<std::size_t>(far[at]));
    std::vector<LinkId> links;
    std::vector<SwitchId> passed{at};
    while (at != aim) {
      const std::vector<Arc>& arcs = cluster_.arcs[at];
      weights_.assign(arcs.size(), 0);
      for (std::size_t i = 0; i < arcs.size(); ++i) {
        const Arc& arc = arcs[i];
        const bool open = fibres[arc.link] > 0 && far[arc.to] != kUnreachable &&
                          links.size() + 1 + static_cast<std::size_t>(far[arc.to]) <= most &&
                          std::find(passed.begin(), passed.end(), arc.to) == passed.end();
        if (!open) continue;
        if (arc.to == aim && !settings_.sub_agents && !settings_.free_walks) {
          weights_.assign(arcs.size(), 0);
          weights_[i] = 1;
          break;
        }
        weights_[i] = attraction[arc.link];
      }
      const std::optional<std::size_t> chosen = Draw();
      if (!chosen) return std::nullopt;
      links.push_back(arcs[*chosen].link);
      passed.push_back(at = arcs[*chosen].to);
    }
    return links;
  }

  std::vector<double> Attractions(const std::vector<double>& pheromones,
                                  const std::vector<double>& costs) const {
    // A cost of 0 (a link between racks that are full) attracts as one far below all others does.
    constexpr double kLeastCost = 1e-6;
    std::vector<double> attractions;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      attractions.push_back(std::pow(pheromones[i], settings_.pheromone_weight) /
                            std::pow(std::max(costs[i], kLeastCost), settings_.cost_weight));
    }
    return attractions;
  }

  /// A position with a probability in proportion to its weight.
  std::optional<std::size_t> Draw() {
    const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    if (!(sum > 0)) return std::nullopt;
    double left = random_.Unit() * sum;
    std::size_t last = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] == 0) continue;
      last = i;
      left -= weights_[i];
      if (left < 0) break;
    }
    return last;
  }

  /// Pheromones after a generation: rho tau, and phi / cost on the current best (Table II).
  void Evaporate(const Ant& best, double cost, std::vector<double>* gpus,
                 std::vector<double>* links) const {
    for (std::vector<double>* all : {gpus, links}) {
      if (all == nullptr) continue;
      for (double& pheromone : *all) pheromone *= settings_.decrease;
    }
    if (best.cost == kFar) return;
    const double more = settings_.increase / std::max(cost, 1e-6);
    if (gpus != nullptr) {
      const std::set<PoolId> pools(best.embedding.pools.begin(), best.embedding.pools.end());
      for (PoolId p : pools) (*gpus)[p] += more;
    }
    std::set<LinkId> passed;
    for (const Route& route : best.embedding.routes) {
      passed.insert(route.links.begin(), route.links.end());
    }
    for (LinkId l : passed) (*links)[l] += more;
  }

  const Cluster& cluster_;
  const Residual& residual_;
  const Chain& chain_;
  const AntSettings& settings_;
  MersenneTwister random_;
  const LinkCosts& link_costs_;
  const std::vector<double> gpu_cost_;
  std::vector<double> link_cost_, access_cost_;      // those of the last ant where its costs fall
  std::vector<std::vector<std::int32_t>> distance_;  // over all links, free or not
  std::vector<double> gpu_pheromone_, link_pheromone_, gpu_attraction_, link_attraction_, weights_;
  std::map<std::vector<KindId>, bool> can_serve_;
  std::map<std::vector<std::int64_t>, std::optional<Split>> cuts_;  // by kinds and circuits
};

}  // namespace

std::optional<Embedding> SendAnts(const Cluster& cluster, const LinkCosts& link_costs,
                                  const Residual& residual, const Chain& chain,
                                  const AntSettings& settings, const Interrupt& interrupt) {
  return Colony(cluster, link_costs, residual, chain, settings).Search(interrupt);
}

}  // namespace tvm_sched::cluster
