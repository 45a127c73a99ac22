#include "cluster/cluster.h"

#include <algorithm>
#include <deque>

namespace tvm_sched::cluster {

Nanoseconds TransferTime(Bytes bytes, Bandwidth bandwidth) {
  const __int128 scaled = static_cast<__int128>(bytes.count) * 1'000'000'000;
  return {static_cast<std::int64_t>((scaled + bandwidth.rate - 1) / bandwidth.rate)};
}

void Finish(Cluster& cluster) {
  cluster.arcs.assign(cluster.switches(), {});
  for (LinkId l = 0; l < std::ssize(cluster.links); ++l) {
    const auto [a, b] = cluster.links[l].ends;
    cluster.arcs[a].push_back({l, b});
    cluster.arcs[b].push_back({l, a});
  }
}

Route MakeRoute(const Cluster& cluster, PoolId from, PoolId to, std::vector<LinkId> links) {
  const Pool &a = cluster.pools[from], &b = cluster.pools[to];
  Route route{std::move(links),
              a.delay + cluster.switch_delay[a.at] + b.delay,
              {std::min(a.bandwidth.rate, b.bandwidth.rate)}};
  SwitchId at = a.at;
  for (LinkId l : route.links) {
    const Link& link = cluster.links[l];
    at = link.ends[0] == at ? link.ends[1] : link.ends[0];
    route.head += link.delay + cluster.switch_delay[at];
    route.bandwidth.rate = std::min(route.bandwidth.rate, link.bandwidth.rate);
  }
  return route;
}

namespace {

struct Sweep {
  std::vector<std::int32_t> distance;
  std::vector<LinkId> came_by;
};

/// Breadth first over links with a free fibre.
Sweep SweepFrom(const Cluster& cluster, std::span<const std::int64_t> fibres, SwitchId from) {
  Sweep sweep{std::vector<std::int32_t>(cluster.switches(), kUnreachable),
              std::vector<LinkId>(cluster.switches(), -1)};
  sweep.distance[from] = 0;
  std::deque<SwitchId> queue{from};
  while (!queue.empty()) {
    const SwitchId at = queue.front();
    queue.pop_front();
    for (const Arc& arc : cluster.arcs[at]) {
      if (fibres[arc.link] <= 0 || sweep.distance[arc.to] != kUnreachable) continue;
      sweep.distance[arc.to] = sweep.distance[at] + 1;
      sweep.came_by[arc.to] = arc.link;
      queue.push_back(arc.to);
    }
  }
  return sweep;
}

}  // namespace

std::vector<std::int32_t> Distances(const Cluster& cluster, std::span<const std::int64_t> fibres,
                                    SwitchId from) {
  return SweepFrom(cluster, fibres, from).distance;
}

std::optional<Route> ShortestRoute(const Cluster& cluster, std::span<const std::int64_t> fibres,
                                   PoolId from, PoolId to) {
  const SwitchId start = cluster.pools[from].at, end = cluster.pools[to].at;
  if (start == end) return MakeRoute(cluster, from, to, {});
  const Sweep sweep = SweepFrom(cluster, fibres, start);
  if (sweep.distance[end] == kUnreachable) return std::nullopt;
  std::vector<LinkId> links;
  for (SwitchId at = end; at != start;) {
    const Link& link = cluster.links[sweep.came_by[at]];
    links.push_back(sweep.came_by[at]);
    at = link.ends[0] == at ? link.ends[1] : link.ends[0];
  }
  std::reverse(links.begin(), links.end());
  return MakeRoute(cluster, from, to, std::move(links));
}

Route FastestRoute(const Cluster& cluster) {
  Route best{{}, simulate::kNever, {1}};
  for (const Pool& pool : cluster.pools) {
    best.head = std::min(best.head, pool.delay);
    best.bandwidth.rate = std::max(best.bandwidth.rate, pool.bandwidth.rate);
  }
  Nanoseconds turn = simulate::kNever;
  for (Nanoseconds delay : cluster.switch_delay) turn = std::min(turn, delay);
  best.head += best.head + turn;
  return best;
}

}  // namespace tvm_sched::cluster
