#include "cluster/link_costs.h"

#include <algorithm>
#include <numeric>

namespace tvm_sched::cluster {

double GpuPower(const Kind& kind) {
  return kind.flops / 1e12 * (static_cast<double>(kind.memory.count) / 1e9);
}

std::vector<double> GpuCosts(const Cluster& cluster, const Residual& residual) {
  std::vector<double> in_rack;
  for (std::size_t p = 0; p < cluster.pools.size(); ++p) {
    const auto rack = static_cast<std::size_t>(cluster.pools[p].rack);
    in_rack.resize(std::max(in_rack.size(), rack + 1));
    in_rack[rack] += static_cast<double>(residual.gpus[p]);
  }
  std::vector<double> costs;
  for (const Pool& pool : cluster.pools) {
    costs.push_back(GpuPower(cluster.kinds[pool.kind]) * in_rack[pool.rack]);
  }
  return costs;
}

namespace {

struct Paths {
  std::vector<std::int32_t> distance;
  std::vector<double> count;
};

/// How many shortest paths lead from a switch to each other one.
Paths CountPaths(const Cluster& cluster, SwitchId from) {
  const std::vector<std::int64_t> all(cluster.links.size(), 1);
  Paths paths{Distances(cluster, all, from), std::vector<double>(cluster.switches())};
  std::vector<SwitchId> order(cluster.switches());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](SwitchId a, SwitchId b) { return paths.distance[a] < paths.distance[b]; });
  paths.count[from] = 1;
  for (SwitchId at : order) {
    if (paths.distance[at] == kUnreachable) break;
    for (const Arc& arc : cluster.arcs[at]) {
      if (paths.distance[arc.to] == paths.distance[at] + 1) paths.count[arc.to] += paths.count[at];
    }
  }
  return paths;
}

}  // namespace

LinkCosts::LinkCosts(const Cluster& cluster)
    : switches_(cluster.switches()), pairs_(switches_ * switches_) {
  std::vector<Paths> from;
  for (SwitchId a = 0; a < std::ssize(cluster.switch_delay); ++a) {
    from.push_back(CountPaths(cluster, a));
  }
  for (std::size_t a = 0; a < switches_; ++a) {
    for (std::size_t b = a + 1; b < switches_; ++b) {
      Pair& pair = pairs_[a * switches_ + b];
      pair.hops = from[a].distance[b];
      if (pair.hops == kUnreachable) continue;
      for (LinkId l = 0; l < std::ssize(cluster.links); ++l) {
        const auto [u, v] = cluster.links[l].ends;
        double through = 0;
        for (const auto& [near, far] : {std::pair(u, v), std::pair(v, u)}) {
          const std::int32_t before = from[a].distance[near], after = from[b].distance[far];
          if (before == kUnreachable || after == kUnreachable) continue;
          if (before + 1 + after == pair.hops) {
            through += from[a].count[near] * from[b].count[far];
          }
        }
        if (through > 0) pair.shares.push_back({l, through / from[a].count[b]});
      }
    }
  }
}

std::vector<double> LinkCosts::operator()(const Cluster& cluster, const Residual& residual,
                                          const std::vector<double>& gpu_costs) const {
  std::vector<double> costs(cluster.links.size());
  for (std::size_t p = 0; p < cluster.pools.size(); ++p) {
    if (residual.gpus[p] == 0) continue;
    for (std::size_t q = p + 1; q < cluster.pools.size(); ++q) {
      const Pair& pair = Between(cluster.pools[p].at, cluster.pools[q].at);
      if (residual.gpus[q] == 0 || pair.shares.empty()) continue;
      // Two links more lead from the switches to the GPUs.
      const double worth = static_cast<double>(residual.gpus[p] * residual.gpus[q]) *
                           (gpu_costs[p] + gpu_costs[q]) / (pair.hops + 2);
      for (const Share& share : pair.shares) costs[share.link] += share.part * worth;
    }
  }
  return costs;
}

std::vector<double> LinkCosts::OfAccessLinks(const Cluster& cluster, const Residual& residual,
                                             const std::vector<double>& gpu_costs) const {
  std::vector<double> costs(cluster.pools.size());
  for (std::size_t p = 0; p < cluster.pools.size(); ++p) {
    if (residual.gpus[p] == 0) continue;
    for (std::size_t q = 0; q < cluster.pools.size(); ++q) {
      const std::int32_t hops = cluster.pools[p].at == cluster.pools[q].at
                                    ? 0
                                    : Between(cluster.pools[p].at, cluster.pools[q].at).hops;
      if (hops == kUnreachable) continue;
      const std::int64_t others = residual.gpus[q] - (p == q);
      costs[p] += static_cast<double>(others) * (gpu_costs[p] + gpu_costs[q]) / (hops + 2);
    }
  }
  return costs;
}

LinkCosts::OfPools LinkCosts::OverPools(const Cluster& cluster, const Residual& residual,
                                        const std::vector<double>& gpu_costs) const {
  OfPools costs{std::vector<double>(cluster.links.size()),
                std::vector<double>(cluster.pools.size())};
  for (std::size_t p = 0; p < cluster.pools.size(); ++p) {
    for (std::size_t q = p + 1; q < cluster.pools.size(); ++q) {
      const Pair& pair = Between(cluster.pools[p].at, cluster.pools[q].at);
      if (residual.gpus[p] == 0 || residual.gpus[q] == 0 || pair.hops == kUnreachable) continue;
      const double worth = (gpu_costs[p] + gpu_costs[q]) / (pair.hops + 2);
      for (const Share& share : pair.shares) costs.links[share.link] += share.part * worth;
      costs.access[p] += worth;
      costs.access[q] += worth;
    }
  }
  return costs;
}

}  // namespace tvm_sched::cluster
