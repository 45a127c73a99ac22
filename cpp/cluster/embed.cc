#include "cluster/embed.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tvm_sched::cluster {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Of many, a number below one that is nearly as large as its share among both.
double Share(std::int64_t part, std::int64_t other) {
  return static_cast<double>(part) / (1.0 + static_cast<double>(part + other));
}

/// The cheapest way to have stage `s` as the `run`-th in a row of one pool.
struct State {
  double cost = kInfinite;
  std::int32_t from_pool = -1, from_run = 0;
};

}  // namespace

std::size_t Embedding::Hops() const {
  return std::accumulate(
      routes.begin(), routes.end(), std::size_t{0},
      [](std::size_t sum, const Route& route) { return sum + route.links.size(); });
}

const std::vector<std::int32_t>& Embedder::DistancesFrom(SwitchId at) {
  if (distances_[at].empty()) distances_[at] = Distances(cluster_, residual_.fibres, at);
  return distances_[at];
}

void Embedder::CountAtSwitches() {
  if (!gpus_at_.empty()) return;
  gpus_at_.resize(cluster_.switches());
  fibres_at_.resize(cluster_.switches());
  for (std::size_t p = 0; p < cluster_.pools.size(); ++p) {
    gpus_at_[cluster_.pools[p].at] += residual_.gpus[p];
  }
  for (std::size_t l = 0; l < cluster_.links.size(); ++l) {
    for (SwitchId end : cluster_.links[l].ends) fibres_at_[end] += residual_.fibres[l];
  }
}

double Embedder::Scarcity(PoolId p) const {
  const SwitchId at = cluster_.pools[p].at;
  return Share(gpus_at_[at], fibres_at_[at]);
}

double Embedder::EntryCost(PoolId p) const {
  constexpr double kMost = 1e-3, kLess = 1e-3;
  return kMost * (Scarcity(p) + kLess * Share(residual_.gpus[p], 0));
}

std::optional<PoolId> Embedder::OnePool(std::span<const KindId> kinds) const {
  const auto stages = static_cast<std::int64_t>(kinds.size());
  if (!std::equal(kinds.begin() + 1, kinds.end(), kinds.begin())) return std::nullopt;
  std::optional<PoolId> best;
  const auto rank = [&](PoolId p) { return std::pair(-Scarcity(p), residual_.gpus[p]); };
  for (PoolId p = 0; p < std::ssize(cluster_.pools); ++p) {
    if (cluster_.pools[p].kind != kinds[0] || residual_.gpus[p] < stages) continue;
    if (!best || rank(p) < rank(*best)) best = p;
  }
  return best;
}

std::optional<std::vector<PoolId>> Embedder::ChoosePools(std::span<const KindId> kinds) {
  CountAtSwitches();
  if (const std::optional<PoolId> one = OnePool(kinds)) {
    return std::vector<PoolId>(kinds.size(), *one);
  }
  const std::size_t stages = kinds.size(), pools = cluster_.pools.size();
  const auto usable = [&](PoolId p, std::size_t s) {
    return cluster_.pools[p].kind == kinds[s] && residual_.gpus[p] > 0;
  };
  // table[s][p * (stages + 1) + run]
  std::vector<std::vector<State>> table(stages, std::vector<State>(pools * (stages + 1)));
  const auto at = [&](std::size_t s, PoolId p, std::size_t run) -> State& {
    return table[s][static_cast<std::size_t>(p) * (stages + 1) + run];
  };
  for (PoolId p = 0; p < std::ssize(cluster_.pools); ++p) {
    if (usable(p, 0)) at(0, p, 1).cost = EntryCost(p);
  }
  for (std::size_t s = 1; s < stages; ++s) {
    for (PoolId p = 0; p < std::ssize(cluster_.pools); ++p) {
      std::size_t run = 0;
      for (std::size_t r = 1; r <= s; ++r) {
        if (at(s - 1, p, r).cost < (run == 0 ? kInfinite : at(s - 1, p, run).cost)) run = r;
        if (at(s - 1, p, r).cost == kInfinite || !usable(p, s)) continue;
        if (static_cast<std::int64_t>(r) < residual_.gpus[p]) {
          at(s, p, r + 1) = {at(s - 1, p, r).cost, p, static_cast<std::int32_t>(r)};
        }
      }
      if (run == 0) continue;
      const double so_far = at(s - 1, p, run).cost;
      const std::vector<std::int32_t>& distance = DistancesFrom(cluster_.pools[p].at);
      for (PoolId q = 0; q < std::ssize(cluster_.pools); ++q) {
        const std::int32_t hops = distance[cluster_.pools[q].at];
        if (q == p || !usable(q, s) || hops == kUnreachable) continue;
        const double cost = so_far + hops + EntryCost(q);
        State& state = at(s, q, 1);
        if (cost < state.cost) state = {cost, p, static_cast<std::int32_t>(run)};
      }
    }
  }
  PoolId pool = -1;
  std::size_t run = 0;
  double best = kInfinite;
  for (PoolId p = 0; p < std::ssize(cluster_.pools); ++p) {
    for (std::size_t r = 1; r <= stages; ++r) {
      if (at(stages - 1, p, r).cost < best) best = at(stages - 1, pool = p, run = r).cost;
    }
  }
  if (pool < 0) return std::nullopt;
  std::vector<PoolId> chosen(stages);
  for (std::size_t s = stages; s-- > 0;) {
    chosen[s] = pool;
    const State state = at(s, pool, run);
    pool = state.from_pool;
    run = static_cast<std::size_t>(state.from_run);
  }
  return chosen;
}

std::optional<Embedding> Embedder::Embed(const Chain& chain, std::span<const KindId> kinds) {
  std::optional<std::vector<PoolId>> pools = ChoosePools(kinds);
  if (!pools) return std::nullopt;
  std::vector<std::int64_t> gpus = residual_.gpus, fibres = residual_.fibres;
  for (PoolId p : *pools) {
    if (--gpus[p] < 0) return std::nullopt;
  }
  Embedding made{std::move(*pools), {}, {}};
  for (std::size_t s = 1; s < made.pools.size(); ++s) {
    std::optional<Route> route = ShortestRoute(cluster_, fibres, made.pools[s - 1], made.pools[s]);
    if (!route) return std::nullopt;
    for (LinkId l : route->links) --fibres[l];
    made.routes.push_back(std::move(*route));
  }
  std::optional<Split> split = BestSplit(cluster_, chain, kinds, made.routes);
  if (!split) return std::nullopt;
  made.split = std::move(*split);
  return made;
}

}  // namespace tvm_sched::cluster
