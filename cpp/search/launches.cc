#include "search/launches.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <utility>

#include "search/bitset.h"

namespace tvm_sched::search {
namespace {

using simulate::kNone;

/// Streams of each device are numbered from 0.
class Counter {
 public:
  explicit Counter(std::size_t devices) : next_(devices) {}
  std::int32_t New(DeviceId device) { return next_[device]++; }

 private:
  std::vector<std::int32_t> next_;
};

void AllocateOpara(const TaskGraph& graph, Launches* launches) {
  Counter streams(graph.devices());
  std::vector<bool> followed(graph.size());
  for (OperatorId o : launches->order) {
    const DeviceId device = launches->device[o];
    launches->stream[o] = kNone;
    for (const Neighbour& before : graph.Predecessors(o)) {
      if (followed[before.op] || launches->device[before.op] != device) continue;
      launches->stream[o] = launches->stream[before.op];
      followed[before.op] = true;
      break;
    }
    if (launches->stream[o] == kNone) launches->stream[o] = streams.New(device);
  }
}

void AllocateWaves(const TaskGraph& graph, Launches* launches) {
  std::vector<std::int32_t> depth(graph.size());
  std::vector<std::vector<std::int32_t>> in_wave(graph.devices());
  for (OperatorId o : launches->order) {
    for (const Neighbour& before : graph.Predecessors(o))
      depth[o] = std::max(depth[o], depth[before.op] + 1);
    auto& waves = in_wave[launches->device[o]];
    if (static_cast<std::size_t>(depth[o]) >= waves.size()) waves.resize(depth[o] + 1);
    launches->stream[o] = waves[depth[o]]++;
  }
}

/// Of each operator the later ones of its device that follow it: those that no longer path
/// leads to, or `all` that any path does.
std::vector<std::vector<std::int32_t>> Followers(const TaskGraph& graph, const Launches& launches,
                                                 bool all) {
  const std::size_t count = graph.size();
  std::vector<std::int32_t> place(count);
  for (std::size_t i = 0; i < count; ++i) place[launches.order[i]] = static_cast<std::int32_t>(i);
  std::vector<BitSet> ancestors(count, BitSet(count));  // by place
  std::vector<std::vector<std::int32_t>> successors(count);
  std::vector<std::int32_t> before;
  for (std::size_t i = 0; i < count; ++i) {
    const OperatorId o = launches.order[i];
    before.clear();
    for (const Neighbour& from : graph.Predecessors(o)) before.push_back(place[from.op]);
    std::ranges::sort(before, std::greater<>());
    BitSet& mine = ancestors[i];
    for (std::int32_t from : before) {  // what is an ancestor of a later one is no edge of its own
      if (mine.Has(from)) continue;
      const OperatorId p = launches.order[from];
      if (!all && launches.device[p] == launches.device[o]) successors[p].push_back(o);
      mine.Add(from);
      mine.AddUpTo(from, ancestors[from]);
    }
    if (!all) continue;
    for (std::size_t from = 0; from < i; ++from) {
      const OperatorId p = launches.order[from];
      if (mine.Has(from) && launches.device[p] == launches.device[o]) successors[p].push_back(o);
    }
  }
  return successors;
}

/// A largest matching of operators with one of their successors each (Hopcroft and Karp).
class Matching {
 public:
  explicit Matching(const std::vector<std::vector<std::int32_t>>& successors)
      : successors_(successors),
        next_(successors.size(), kNone),
        previous_(successors.size(), kNone),
        layer_(successors.size()) {
    for (std::size_t u = 0; u < successors.size(); ++u) {  // greedily, which leaves little to do
      for (std::int32_t v : successors[u]) {
        if (previous_[v] != kNone) continue;
        next_[u] = v;
        previous_[v] = static_cast<std::int32_t>(u);
        break;
      }
    }
    while (FindLayers()) {
      for (std::size_t u = 0; u < next_.size(); ++u) {
        if (next_[u] == kNone) Augment(static_cast<std::int32_t>(u));
      }
    }
  }

  /// The operator before each one in its chain, or kNone.
  const std::vector<std::int32_t>& previous() const { return previous_; }

 private:
  bool FindLayers() {
    std::vector<std::int32_t> queue;
    for (std::size_t u = 0; u < next_.size(); ++u) {
      layer_[u] = next_[u] == kNone && !successors_[u].empty() ? 0 : kNone;
      if (layer_[u] == 0) queue.push_back(static_cast<std::int32_t>(u));
    }
    bool found = false;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      for (std::int32_t v : successors_[queue[i]]) {
        const std::int32_t other = previous_[v];
        if (other == kNone) {
          found = true;
        } else if (layer_[other] == kNone) {
          layer_[other] = layer_[queue[i]] + 1;
          queue.push_back(other);
        }
      }
    }
    return found;
  }

  bool Augment(std::int32_t u) {
    for (std::int32_t v : successors_[u]) {
      const std::int32_t other = previous_[v];
      if (other != kNone && (layer_[other] != layer_[u] + 1 || !Augment(other))) continue;
      next_[u] = v;
      previous_[v] = u;
      return true;
    }
    layer_[u] = kNone;
    return false;
  }

  const std::vector<std::vector<std::int32_t>>& successors_;
  std::vector<std::int32_t> next_, previous_, layer_;
};

/// Gives each chain of a matching a stream, numbered in launch order; `joined`, if given,
/// says behind which chain another one goes on, both named by their first operators.
void StreamOfChains(const Matching& chains, const Matching* joined, Launches* launches,
                    Counter streams) {
  for (OperatorId o : launches->order) {
    std::int32_t before = chains.previous()[o];
    if (before == kNone && joined != nullptr) before = joined->previous()[o];
    launches->stream[o] =
        before == kNone ? streams.New(launches->device[o]) : launches->stream[before];
  }
}

/// Chains of direct followers, as few as there can be; then these are matched with all the
/// chains that begin behind their ends, and such chains join.
void AllocateNimble(const TaskGraph& graph, Launches* launches) {
  const auto successors = Followers(graph, *launches, /*all=*/false);
  const auto every = Followers(graph, *launches, /*all=*/true);
  const Matching chains(successors);
  std::vector<OperatorId> begin(graph.size()), end(graph.size());  // end by the first operator
  for (OperatorId o : launches->order) {
    const std::int32_t before = chains.previous()[o];
    begin[o] = before == kNone ? o : begin[before];
    end[begin[o]] = o;
  }
  std::vector<std::vector<std::int32_t>> chains_behind(graph.size());
  for (OperatorId o : launches->order) {
    if (begin[o] != o) continue;
    for (std::int32_t next : every[end[o]]) {
      if (begin[next] == next) chains_behind[o].push_back(next);
    }
  }
  const Matching joined(chains_behind);
  StreamOfChains(chains, &joined, launches, Counter(graph.devices()));
}

/// Chains of operators, as few as there can be, each of which follows the one before by any
/// path.
void AllocateFewest(const TaskGraph& graph, Launches* launches) {
  auto successors = Followers(graph, *launches, /*all=*/false);
  // behind the direct ones, whose chains need fewer waits
  const auto every = Followers(graph, *launches, /*all=*/true);
  for (std::size_t o = 0; o < every.size(); ++o)
    successors[o].insert(successors[o].end(), every[o].begin(), every[o].end());
  StreamOfChains(Matching(successors), nullptr, launches, Counter(graph.devices()));
}

/// Topological order whose next operator `pick` takes out of those that are free.
template <typename Free>
std::vector<OperatorId> Order(const TaskGraph& graph, Free free) {
  std::vector<std::size_t> waits(graph.size());
  for (std::size_t o = 0; o < graph.size(); ++o) {
    waits[o] = graph.Predecessors(static_cast<OperatorId>(o)).size();
    if (waits[o] == 0) free.Add(static_cast<OperatorId>(o));
  }
  std::vector<OperatorId> order;
  order.reserve(graph.size());
  while (!free.Empty()) {
    order.push_back(free.Take());
    for (const Neighbour& next : graph.Successors(order.back())) {
      if (--waits[next.op] == 0) free.Add(next.op);
    }
  }
  return order;
}

/// A queue, or (`last`) a stack.
struct ByArrival {
  bool last;
  std::deque<OperatorId> waiting = {};
  void Add(OperatorId o) { waiting.push_back(o); }
  bool Empty() const { return waiting.empty(); }
  OperatorId Take() {
    const OperatorId o = last ? waiting.back() : waiting.front();
    last ? waiting.pop_back() : waiting.pop_front();
    return o;
  }
};

/// The least value first; among equal ones the one that came first.
struct LeastFirst {
  std::span<const double> value;
  using Entry = std::pair<std::pair<double, std::size_t>, OperatorId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue = {};
  std::size_t added = 0;
  void Add(OperatorId o) { queue.push({{value[o], added++}, o}); }
  bool Empty() const { return queue.empty(); }
  OperatorId Take() {
    const OperatorId o = queue.top().second;
    queue.pop();
    return o;
  }
};

/// Two kinds in turn, as long as both have operators; a kind without operators has its turn
/// next time, or loses it where `turns_lapse`.
struct InTurn {
  std::span<const std::int64_t> memory_bound;
  LeastFirst memory, compute;
  bool memory_next = true;
  bool turns_lapse = false;
  void Add(OperatorId o) { (memory_bound[o] ? memory : compute).Add(o); }
  bool Empty() const { return memory.Empty() && compute.Empty(); }
  OperatorId Take() {
    const bool from_memory = memory_next ? !memory.Empty() : compute.Empty();
    memory_next = turns_lapse ? !memory_next : !from_memory;
    return (from_memory ? memory : compute).Take();
  }
};

}  // namespace

void AllocateStreams(const TaskGraph& graph, Allocation method, Launches* launches) {
  switch (method) {
    case Allocation::kOne:
      std::ranges::fill(launches->stream, 0);
      return;
    case Allocation::kOpara:
      return AllocateOpara(graph, launches);
    case Allocation::kNimble:
      return AllocateNimble(graph, launches);
    case Allocation::kWavefront:
      return AllocateWaves(graph, launches);
    case Allocation::kFewest:
      return AllocateFewest(graph, launches);
  }
}

std::int64_t CountSynchronizations(const TaskGraph& graph, const Launches& launches) {
  // The streams of all devices as one row, and for each operator how many of each stream have ended
  // before it starts, it itself included.
  std::vector<std::int32_t> first(graph.devices() + 1), streams(graph.devices());
  for (OperatorId o : launches.order)
    streams[launches.device[o]] = std::max(streams[launches.device[o]], launches.stream[o] + 1);
  for (std::size_t d = 0; d < graph.devices(); ++d) first[d + 1] = first[d] + streams[d];
  const auto width = static_cast<std::size_t>(first.back());
  std::vector<std::int32_t> known(graph.size() * width), position(graph.size()),
      place(graph.size());
  std::vector<OperatorId> last(width, kNone);
  std::vector<std::int32_t> length(width);
  std::vector<OperatorId> before;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < launches.order.size(); ++i) {
    const OperatorId o = launches.order[i];
    const std::int32_t stream = first[launches.device[o]] + launches.stream[o];
    std::int32_t* mine = known.data() + o * width;
    place[o] = static_cast<std::int32_t>(i);
    auto wait_for = [&](OperatorId p) {
      const std::int32_t* theirs = known.data() + p * width;
      for (std::size_t s = 0; s < width; ++s) mine[s] = std::max(mine[s], theirs[s]);
    };
    before.clear();
    for (const Neighbour& from : graph.Predecessors(o)) before.push_back(from.op);
    if (last[stream] != kNone) before.push_back(last[stream]);
    std::ranges::sort(before, std::greater<>(), [&](OperatorId p) { return place[p]; });
    for (OperatorId p : before) {
      const std::int32_t theirs = first[launches.device[p]] + launches.stream[p];
      if (mine[theirs] > position[p]) continue;
      if (theirs != stream && launches.device[p] == launches.device[o]) ++count;
      wait_for(p);
    }
    position[o] = length[stream]++;
    mine[stream] = position[o] + 1;
    last[stream] = o;
  }
  return count;
}

std::vector<OperatorId> OrderLaunches(const TaskGraph& graph, LaunchOrder method,
                                      std::span<const double> demand,
                                      std::span<const std::int64_t> memory_bound) {
  switch (method) {
    case LaunchOrder::kDepthFirst:
      return Order(graph, ByArrival{true});
    case LaunchOrder::kBreadthFirst:
      return Order(graph, ByArrival{false});
    case LaunchOrder::kCriticalPath: {
      std::vector<double> negated_rank = graph.UpwardRank();
      for (double& rank : negated_rank) rank = -rank;
      return Order(graph, LeastFirst{negated_rank});
    }
    case LaunchOrder::kOpara:
      return Order(graph, InTurn{memory_bound, {demand}, {demand}});
    case LaunchOrder::kOparaProgram:
      return Order(graph, InTurn{memory_bound, {demand}, {demand}, false, true});
  }
  return {};
}

}  // namespace tvm_sched::search
