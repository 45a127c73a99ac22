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
constexpr size_t kLongestWalk = 6;  // links between switches, where the shortest way is no longer

/*! \brief A solution and its cost. */
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
        gpu_cost_(GpuCosts(cluster, residual)),
        link_cost_(link_costs(cluster, residual, gpu_cost_)) {
    const std::vector<int64_t> all(cluster.links.size(), 1);
    distance_.resize(cluster.switches());
    for (SwitchId s = 0; s < std::ssize(distance_); ++s) distance_[s] = Distances(cluster, all, s);
  }

  std::optional<Embedding> Search(const Interrupt& interrupt) {
    Ant best;
    const size_t most = settings_.most_stages == 0 ? chain_.blocks() : settings_.most_stages;
    for (size_t stages = std::max<size_t>(1, settings_.least_stages); stages <= most; ++stages) {
      if (CheapestGpus(stages) >= best.cost) break;
      gpu_pheromone_.assign(cluster_.pools.size(), settings_.initial);
      link_pheromone_.assign(cluster_.links.size(), settings_.initial);
      Ant current;  // the best of this many stages
      for (size_t g = 0; g < settings_.generations; ++g) {
        interrupt();
        const double limit = std::min(best.cost, current.cost);
        Ant first = Generation(stages, limit, g == 1 && limit == kFar);
        if (first.cost < current.cost) current = std::move(first);
        Evaporate(current);
      }
      if (current.cost < best.cost) best = std::move(current);
    }
    if (best.cost == kFar) return std::nullopt;
    return std::move(best.embedding);
  }

 private:
  /*! \brief No solution of this many stages costs less; infinity where there are too few GPUs. */
  double CheapestGpus(size_t stages) const {
    std::vector<PoolId> order(cluster_.pools.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](PoolId a, PoolId b) { return gpu_cost_[a] < gpu_cost_[b]; });
    double cost = 0;
    auto left = static_cast<int64_t>(stages);
    for (PoolId p : order) {
      const int64_t taken = std::min(left, residual_.gpus[p]);
      cost += static_cast<double>(taken) * gpu_cost_[p];
      left -= taken;
    }
    return left > 0 ? kFar : cost;
  }

  /*!
   * \brief The best ant of a generation, if it is cheaper than the limit.
   *
   * \param together Each ant keeps to one rack, as in the authors' simulator where nothing has been
   * found before; the paper does not tell of it.
   */
  Ant Generation(size_t stages, double limit, bool together) {
    gpu_attraction_ = Attractions(gpu_pheromone_, gpu_cost_);
    link_attraction_ = Attractions(link_pheromone_, link_cost_);
    Ant best;
    for (size_t a = 0; a < settings_.agents; ++a) {
      Ant ant = Send(stages, std::min(limit, best.cost), together);
      if (ant.cost < best.cost) best = std::move(ant);
    }
    return best;
  }

  Ant Send(size_t stages, double limit, bool together) {
    Ant ant{{}, 0};
    if (!ChooseGpus(stages, limit, together, &ant)) return {};
    std::vector<KindId> kinds;
    for (PoolId p : ant.embedding.pools) kinds.push_back(cluster_.pools[p].kind);
    // Whichever check fails more often comes first: the cost once there is a limit.
    const bool limited = limit < kFar;
    if (limited && !Walk(limit, &ant)) return {};
    if (!CanServe(kinds)) return {};
    if (!limited && !Walk(limit, &ant)) return {};
    std::optional<Split> split = BestSplit(cluster_, chain_, kinds, ant.embedding.routes);
    if (!split) return {};
    ant.embedding.split = std::move(*split);
    return ant;
  }

  /*! \brief A pool for each stage; a pool is as likely as its free GPUs together. */
  bool ChooseGpus(size_t stages, double limit, bool together, Ant* ant) {
    std::vector<int64_t> free = residual_.gpus;
    weights_.resize(cluster_.pools.size());
    for (size_t s = 0; s < stages; ++s) {
      for (size_t p = 0; p < weights_.size(); ++p) {
        const bool open = !together || (s == 0 ? free[p] >= static_cast<int64_t>(stages)
                                               : p == static_cast<size_t>(ant->embedding.pools[0]));
        weights_[p] = open ? static_cast<double>(free[p]) * gpu_attraction_[p] : 0;
      }
      const std::optional<size_t> chosen = Draw();
      if (!chosen) return false;
      ant->cost += gpu_cost_[*chosen];
      if (ant->cost >= limit) return false;
      --free[*chosen];
      ant->embedding.pools.push_back(static_cast<PoolId>(*chosen));
    }
    return true;
  }

  /*! \brief Whether some cut is within the limits over the fastest route; most ants fail here. */
  bool CanServe(const std::vector<KindId>& kinds) {
    auto [at, fresh] = can_serve_.try_emplace(kinds);
    if (fresh) {
      const std::vector<Route> routes(kinds.size() - 1, FastestRoute(cluster_));
      at->second = BestSplit(cluster_, chain_, kinds, routes).has_value();
    }
    return at->second;
  }

  bool Walk(double limit, Ant* ant) {
    std::vector<int64_t> fibres = residual_.fibres;
    for (size_t s = 1; s < ant->embedding.pools.size(); ++s) {
      const PoolId from = ant->embedding.pools[s - 1], to = ant->embedding.pools[s];
      std::optional<std::vector<LinkId>> links =
          WalkTo(cluster_.pools[from].at, cluster_.pools[to].at, fibres);
      if (!links) return false;
      for (LinkId l : *links) {
        --fibres[l];
        ant->cost += link_cost_[l];
      }
      if (ant->cost >= limit) return false;
      ant->embedding.routes.push_back(MakeRoute(cluster_, from, to, std::move(*links)));
    }
    return true;
  }

  /*! \brief A random walk that passes no switch twice and steps to its aim when it is next. */
  std::optional<std::vector<LinkId>> WalkTo(SwitchId at, SwitchId aim,
                                            const std::vector<int64_t>& fibres) {
    const std::vector<int32_t>& far = distance_[aim];
    const size_t most = std::max<size_t>(kLongestWalk, static_cast<size_t>(far[at]));
    std::vector<LinkId> links;
    std::vector<SwitchId> passed{at};
    while (at != aim) {
      const std::vector<Arc>& arcs = cluster_.arcs[at];
      weights_.assign(arcs.size(), 0);
      for (size_t i = 0; i < arcs.size(); ++i) {
        const Arc& arc = arcs[i];
        const bool open = fibres[arc.link] > 0 && far[arc.to] != kUnreachable &&
                          links.size() + 1 + static_cast<size_t>(far[arc.to]) <= most &&
                          std::find(passed.begin(), passed.end(), arc.to) == passed.end();
        if (!open) continue;
        if (arc.to == aim) {
          weights_.assign(arcs.size(), 0);
          weights_[i] = 1;
          break;
        }
        weights_[i] = link_attraction_[arc.link];
      }
      const std::optional<size_t> chosen = Draw();
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
    for (size_t i = 0; i < costs.size(); ++i) {
      attractions.push_back(std::pow(pheromones[i], settings_.pheromone_weight) /
                            std::pow(std::max(costs[i], kLeastCost), settings_.cost_weight));
    }
    return attractions;
  }

  /*! \brief A position with a probability in proportion to its weight. */
  std::optional<size_t> Draw() {
    const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    if (!(sum > 0)) return std::nullopt;
    double left = random_.Unit() * sum;
    size_t last = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] == 0) continue;
      last = i;
      left -= weights_[i];
      if (left < 0) break;
    }
    return last;
  }

  /*! \brief Pheromones after a generation: rho tau, and phi / cost on the current best (Table II).
   */
  void Evaporate(const Ant& best) {
    for (double& pheromone : gpu_pheromone_) pheromone *= settings_.decrease;
    for (double& pheromone : link_pheromone_) pheromone *= settings_.decrease;
    if (best.cost == kFar) return;
    const double more = settings_.increase / std::max(best.cost, 1e-6);
    const std::set<PoolId> pools(best.embedding.pools.begin(), best.embedding.pools.end());
    for (PoolId p : pools) gpu_pheromone_[p] += more;
    std::set<LinkId> links;
    for (const Route& route : best.embedding.routes) {
      links.insert(route.links.begin(), route.links.end());
    }
    for (LinkId l : links) link_pheromone_[l] += more;
  }

  const Cluster& cluster_;
  const Residual& residual_;
  const Chain& chain_;
  const AntSettings& settings_;
  MersenneTwister random_;
  const std::vector<double> gpu_cost_, link_cost_;
  std::vector<std::vector<int32_t>> distance_;  // over all links, free or not
  std::vector<double> gpu_pheromone_, link_pheromone_, gpu_attraction_, link_attraction_, weights_;
  std::map<std::vector<KindId>, bool> can_serve_;
};

}  // namespace

std::optional<Embedding> SendAnts(const Cluster& cluster, const LinkCosts& link_costs,
                                  const Residual& residual, const Chain& chain,
                                  const AntSettings& settings, const Interrupt& interrupt) {
  return Colony(cluster, link_costs, residual, chain, settings).Search(interrupt);
}

}  // namespace tvm_sched::cluster
