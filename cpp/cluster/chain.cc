#include "cluster/chain.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace tvm_sched::cluster {
namespace {

/// A way to serve the blocks before some place: bottleneck stage or transfer, sum of
/// transfers.
struct Label {
  Nanoseconds cycle, transfers;
  std::size_t from = 0, label = 0;  // where the last stage began, and which label stood there
};

using Labels = std::vector<Label>;

/// Keeps the labels of which none is at least as good in both.
void Insert(Labels& labels, const Label& made) {
  const auto covers = [](const Label& a, const Label& b) {
    return a.cycle <= b.cycle && a.transfers <= b.transfers;
  };
  for (const Label& label : labels) {
    if (covers(label, made)) return;
  }
  std::erase_if(labels, [&](const Label& label) { return covers(made, label); });
  labels.push_back(made);
}

Nanoseconds Latency(const Label& label, std::size_t stages) {
  return {static_cast<std::int64_t>(stages) * label.cycle.count + label.transfers.count};
}

/// Labels at each place after one more stage on a GPU of a kind.
///
/// \param stages There are this many in all, or this many so far where that is not known.
/// \return How many labels were compared.
std::size_t Extend(const Cluster& cluster, const Chain& chain, const std::vector<Labels>& before,
                   KindId kind, const Route& route, std::size_t stages,
                   std::vector<Labels>& after) {
  const std::size_t n = chain.blocks();
  std::size_t compared = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (before[i].empty()) continue;
    const Nanoseconds transfer = i == 0 ? Nanoseconds{0} : route.Time(chain.input[i]);
    if (transfer > chain.cycle_limit) continue;
    for (std::size_t j = i + 1; j <= n; ++j) {
      if (chain.Memory(i, j) > cluster.kinds[kind].memory) break;
      const Nanoseconds time = std::max(chain.Time(kind, i, j), transfer);
      if (time > chain.cycle_limit) break;
      for (std::size_t at = 0; at < before[i].size(); ++at) {
        const Label& old = before[i][at];
        const Label made{std::max(old.cycle, time), old.transfers + transfer, i, at};
        compared += after[j].size() + 1;
        if (Latency(made, stages) <= chain.latency_limit) Insert(after[j], made);
      }
    }
  }
  return compared;
}

std::vector<Labels> Start(const Chain& chain) {
  std::vector<Labels> labels(chain.blocks() + 1);
  labels[0].push_back({});
  return labels;
}

/// Position of the label of least cycle, then latency.
std::size_t Best(const Labels& labels) {
  const auto best =
      std::min_element(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
        return std::pair(a.cycle, a.transfers) < std::pair(b.cycle, b.transfers);
      });
  return static_cast<std::size_t>(best - labels.begin());
}

/// Whether stages without inputs and transfers could serve the chain; false says that none
/// can.
bool Reaches(const Cluster& cluster, const Chain& chain, std::span<const KindId> kinds) {
  const std::size_t n = chain.blocks();
  const auto stages = static_cast<std::int64_t>(kinds.size());
  const Nanoseconds most =
      std::min(chain.cycle_limit, Nanoseconds{chain.latency_limit.count / stages});
  std::size_t at = 0;
  for (KindId kind : kinds) {
    const Bytes room = cluster.kinds[kind].memory;
    std::size_t end = at;
    while (end < n && chain.Time(kind, at, end + 1) <= most &&
           chain.Memory(at, end + 1) + -chain.input[at] <= room) {
      ++end;
    }
    at = end;
  }
  return at == n && kinds.size() <= n;
}

using Counts = std::vector<std::int32_t>;

constexpr std::size_t kMostCompared = 300'000'000;  // labels and mixes: seconds
constexpr std::size_t kMostOrders = 720;            // all of six kinds

bool Contains(const Counts& big, const Counts& small) {
  return std::equal(big.begin(), big.end(), small.begin(), std::greater_equal<>());
}

}  // namespace

Nanoseconds Chain::Time(KindId kind, std::size_t first, std::size_t end) const {
  return time_before[kind][end] + -time_before[kind][first];
}

Bytes Chain::Memory(std::size_t first, std::size_t end) const {
  return memory_before[end] + -memory_before[first] + input[first];
}

std::optional<Split> BestSplit(const Cluster& cluster, const Chain& chain,
                               std::span<const KindId> kinds, std::span<const Route> routes) {
  if (!Reaches(cluster, chain, kinds)) return std::nullopt;
  const Route none;
  std::vector<std::vector<Labels>> steps{Start(chain)};
  for (std::size_t s = 0; s < kinds.size(); ++s) {
    steps.emplace_back(chain.blocks() + 1);
    Extend(cluster, chain, steps[s], kinds[s], s == 0 ? none : routes[s - 1], kinds.size(),
           steps[s + 1]);
  }
  const Labels& found = steps.back()[chain.blocks()];
  if (found.empty()) return std::nullopt;
  std::size_t at = Best(found), end = chain.blocks();
  Split split{{}, found[at].cycle, Latency(found[at], kinds.size())};
  for (std::size_t s = kinds.size(); s > 0; --s) {
    const Label label = steps[s][end][at];
    split.ends.push_back(end);
    end = label.from;
    at = label.label;
  }
  std::reverse(split.ends.begin(), split.ends.end());
  return split;
}

std::vector<Mix> Mixes(const Cluster& cluster, const Chain& chain,
                       std::span<const std::int64_t> gpus, std::size_t stages,
                       std::size_t most_stages, const Interrupt& interrupt) {
  const Route route = FastestRoute(cluster);
  std::vector<Mix> found;
  std::map<Counts, std::vector<Labels>> level{{Counts(cluster.kinds.size()), Start(chain)}};
  std::size_t compared = 0;
  const std::size_t most = stages == 0 ? std::min(most_stages, chain.blocks()) : stages;
  for (std::size_t s = 1; s <= most && !level.empty(); ++s) {
    std::map<Counts, std::vector<Labels>> next;
    for (const auto& [counts, labels] : level) {
      interrupt();
      for (KindId kind = 0; kind < std::ssize(cluster.kinds); ++kind) {
        if (counts[kind] >= gpus[kind]) continue;
        if (compared > kMostCompared) throw TooManyMixes();
        Counts more = counts;
        ++more[kind];
        // Those found last are as large as this one: none of them can be contained in it.
        const auto known = [&](const Mix& mix) { return Contains(more, mix.gpus); };
        compared += found.size() + chain.blocks();
        if (stages == 0 && std::any_of(found.begin(), found.end(), known)) continue;
        std::vector<Labels>& after = next[more];
        after.resize(chain.blocks() + 1);
        compared += Extend(cluster, chain, labels, kind, route, s, after);
      }
    }
    for (auto it = next.begin(); it != next.end();) {
      const Labels& ends = it->second[chain.blocks()];
      const bool answer = !ends.empty() && (stages == 0 || s == stages);
      if (answer) {
        const Label& best = ends[Best(ends)];
        found.push_back({it->first, best.cycle, Latency(best, s)});
      }
      const auto reached = [](const Labels& at) { return !at.empty(); };
      const bool dead = std::none_of(it->second.begin(), it->second.end() - 1, reached);
      it = dead || (answer && stages == 0) ? next.erase(it) : std::next(it);
    }
    level = std::move(next);
  }
  return found;
}

std::vector<std::vector<KindId>> RunOrders(const Cluster& cluster, const Chain& chain,
                                           std::span<const std::int32_t> mix) {
  std::vector<KindId> present;
  for (KindId kind = 0; kind < std::ssize(mix); ++kind) {
    if (mix[kind] > 0) present.push_back(kind);
  }
  const auto total = static_cast<std::size_t>(std::accumulate(mix.begin(), mix.end(), 0));
  const std::vector<Route> routes(total - 1, FastestRoute(cluster));
  std::vector<std::vector<KindId>> orders;
  std::size_t looks = kMostOrders;
  do {
    std::vector<KindId> order;
    for (KindId kind : present) order.insert(order.end(), mix[kind], kind);
    if (BestSplit(cluster, chain, order, routes)) orders.push_back(std::move(order));
  } while (--looks > 0 && std::next_permutation(present.begin(), present.end()));
  return orders;
}

}  // namespace tvm_sched::cluster
