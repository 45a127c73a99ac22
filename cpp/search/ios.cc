#include "search/ios.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "search/bitset.h"
#include "search/random.h"

namespace tvm_sched::search {
namespace {

/// A set of a block's operators.
using Set = BitSet64;
constexpr std::size_t kLargest = 64;

/// Operators in topological order, cut where one operator is before or after all others.
std::vector<std::vector<OperatorId>> Blocks(const TaskGraph& graph, int most) {
  const std::vector<OperatorId> order = graph.PriorityOrder();
  std::vector<std::size_t> position(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  // No edge may pass over a separator: it must be the only source of what follows, and the only end
  // of what is before.
  std::vector<std::vector<OperatorId>> blocks;
  std::size_t reach = 0;  // furthest successor of the operators so far
  bool open_end = false;
  std::size_t sources = 0;
  for (OperatorId o : order) sources += graph.Predecessors(o).empty();
  std::size_t sources_seen = 0;
  bool cut = true;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const OperatorId o = order[i];
    sources_seen += graph.Predecessors(o).empty();
    const bool separates = reach <= i && !open_end && sources_seen == sources;
    if (cut || separates || (most > 0 && std::ssize(blocks.back()) >= most)) blocks.emplace_back();
    blocks.back().push_back(o);
    cut = separates;
    for (const Neighbour& next : graph.Successors(o)) reach = std::max(reach, position[next.op]);
    open_end |= graph.Successors(o).empty();
  }
  return blocks;
}

/// Operators of each given block in topological order, cut after `most` operators.
std::vector<std::vector<OperatorId>> GivenBlocks(const TaskGraph& graph,
                                                 std::span<const std::int64_t> block_of, int most) {
  std::vector<OperatorId> order = graph.PriorityOrder();
  std::ranges::stable_sort(order, {}, [&](OperatorId o) { return block_of[o]; });
  std::vector<std::vector<OperatorId>> blocks;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool first = i == 0 || block_of[order[i]] != block_of[order[i - 1]];
    if (first || (most > 0 && std::ssize(blocks.back()) >= most)) blocks.emplace_back();
    blocks.back().push_back(order[i]);
  }
  return blocks;
}

/// Random walks by which the states of a block are estimated.
constexpr int kWalks = 4096;

/// About how many sets of a block's operators contain the predecessors of their own, as log2.
///
/// Knuth, "Estimating the efficiency of backtrack programs" (Mathematics of Computation 29, 1975):
/// operators are taken or left one after another, and what follows one that is left is left, too. A
/// walk that had a choice k times stands for 2^k sets; the mean over random walks is the number on
/// average, and mostly below it where walks differ much.
double EstimateLog2States(const TaskGraph& graph, const std::vector<OperatorId>& ops) {
  std::unordered_map<OperatorId, std::size_t> place;
  for (std::size_t i = 0; i < ops.size(); ++i) place[ops[i]] = i;
  MersenneTwister random(1);
  std::vector<bool> taken(ops.size());
  std::vector<int> choices(kWalks);
  for (int walk = 0; walk < kWalks; ++walk) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      taken[i] = std::ranges::all_of(graph.Predecessors(ops[i]), [&](const Neighbour& before) {
        const auto found = place.find(before.op);
        return found == place.end() || taken[found->second];
      });
      if (!taken[i]) continue;
      ++choices[walk];
      taken[i] = random.Coin();
    }
  }
  const int most = std::ranges::max(choices);  // 2^most may be more than a double holds
  double sum = 0;
  for (const int count : choices) sum += std::exp2(count - most);
  return most + std::log2(sum / kWalks);
}

/// The dynamic program of one block.
class Block {
 public:
  Block(const TaskGraph& graph, const simulate::Concurrency& concurrency, DeviceId device,
        const IosLimits& limits, std::vector<OperatorId> ops)
      : graph_(graph),
        concurrency_(concurrency),
        device_(device),
        limits_(limits),
        ops_(std::move(ops)),
        before_(ops_.size()),
        after_(ops_.size()) {
    if (ops_.size() > kLargest) return;
    std::unordered_map<OperatorId, std::size_t> place;
    for (std::size_t i = 0; i < ops_.size(); ++i) place[ops_[i]] = i;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      for (const Neighbour& next : graph.Successors(ops_[i])) {
        const auto found = place.find(next.op);
        if (found == place.end()) continue;
        after_[i] |= Bit(found->second);
        before_[found->second] |= Bit(i);
      }
    }
  }

  /// How many sets contain the predecessors of their operators; kTooMany above the limit.
  std::int64_t CountStates() const {
    if (ops_.size() > kLargest) return kTooMany;
    std::unordered_set<Set> seen = {0};
    std::vector<Set> stack = {0};
    while (!stack.empty()) {
      const Set set = stack.back();
      stack.pop_back();
      for (std::size_t i = 0; i < ops_.size(); ++i) {
        if ((set & Bit(i)) || (before_[i] & ~set)) continue;
        if (seen.insert(set | Bit(i)).second) stack.push_back(set | Bit(i));
        if (std::ssize(seen) > limits_.states) return kTooMany;
      }
    }
    return std::ssize(seen);
  }

  /// Counts the stages whose time was requested.
  void AddProfiled(IosAnswer* answer) const {
    for (const auto& [stage, time] : time_) {
      if (time < 0) continue;
      ++answer->profiled;
      answer->profile_time = answer->profile_time + simulate::Nanoseconds{time};
    }
  }

  std::vector<GroupedStage> Solve(const Progress& progress, std::int64_t states) {
    total_ = states;
    progress_ = &progress;
    const Set all = FirstBits(ops_.size());
    Best(all);
    std::vector<GroupedStage> stages;
    for (Set set = all; set != 0; set &= ~best_[set].last)
      stages.push_back(Grouped(best_[set].last));
    std::ranges::reverse(stages);
    return stages;
  }

 private:
  struct Answer {
    std::int64_t time = 0;
    Set last = 0;
  };

  std::int64_t Best(Set set) {
    if (set == 0) return 0;
    if (const auto known = best_.find(set); known != best_.end()) return known->second.time;
    Answer answer{kFar, 0};
    TryEndings(set, 0, ops_.size(), &answer);
    best_[set] = answer;
    if (best_.size() % 1024 == 0) (*progress_)(static_cast<std::int64_t>(best_.size()), total_);
    return answer.time;
  }

  /// All last stages of `set` that add to `last` operators below `limit`, later ones having
  /// been decided.
  void TryEndings(Set set, Set last, std::size_t limit, Answer* best) {
    if (last != 0) Consider(set, last, best);
    if (std::popcount(last) >= limits_.groups * limits_.group_size) return;
    for (std::size_t i = limit; i-- > 0;) {
      if (!(set & Bit(i)) || (after_[i] & set & ~last)) continue;
      if (LargestGroup(last | Bit(i), i) > limits_.group_size) continue;
      TryEndings(set, last | Bit(i), i, best);
    }
  }

  void Consider(Set set, Set last, Answer* best) {
    const std::optional<std::int64_t> time = TimeOf(last);
    if (!time || *time >= best->time) return;
    const std::int64_t total = Add(Best(set & ~last), *time);
    if (total < best->time) *best = {total, last};
  }

  /// Size of the group of operator `i`: all that are connected with it within the stage.
  int LargestGroup(Set stage, std::size_t i) const { return std::popcount(GroupOf(stage, i)); }

  Set GroupOf(Set stage, std::size_t i) const {
    Set group = Bit(i);
    for (Set open = group; open != 0;) {
      const std::size_t k = Least(open);
      open = WithoutLeast(open);
      const Set more = (before_[k] | after_[k]) & stage & ~group;
      group |= more;
      open |= more;
    }
    return group;
  }

  GroupedStage Grouped(Set stage) const {
    GroupedStage result;
    std::int32_t number = 0;
    for (Set left = stage; left != 0; ++number) {
      const Set group = GroupOf(stage, Least(left));
      left &= ~group;
      for (Set rest = group; rest != 0; rest = WithoutLeast(rest)) {
        result.ops.push_back(ops_[Least(rest)]);
        result.group.push_back(number);
      }
    }
    return result;
  }

  /// Time of a stage; nothing where it has too many groups.
  std::optional<std::int64_t> TimeOf(Set stage) {
    const auto [found, added] = time_.try_emplace(stage, -1);
    if (added) {
      const GroupedStage grouped = Grouped(stage);
      if (grouped.group.back() < limits_.groups) {
        std::vector<simulate::Member> members;
        for (std::size_t i = 0; i < grouped.ops.size(); ++i) {
          members.push_back({grouped.ops[i], grouped.group[i],
                             simulate::Nanoseconds{graph_.Time(grouped.ops[i], device_)}});
        }
        found->second = concurrency_.StageTime(device_, members).count;
      }
    }
    return found->second < 0 ? std::nullopt : std::optional(found->second);
  }

  const TaskGraph& graph_;
  const simulate::Concurrency& concurrency_;
  const DeviceId device_;
  const IosLimits limits_;
  const std::vector<OperatorId> ops_;
  std::vector<Set> before_, after_;
  std::unordered_map<Set, Answer> best_;
  std::unordered_map<Set, std::int64_t> time_;
  const Progress* progress_ = nullptr;
  std::int64_t total_ = 0;
};

}  // namespace

IosAnswer SolveStages(const TaskGraph& graph, const simulate::Concurrency& concurrency,
                      DeviceId device, const IosLimits& limits,
                      std::span<const std::int64_t> block_of, const Progress& progress) {
  IosAnswer answer;
  std::vector<Block> blocks;
  std::vector<std::int64_t> states;
  for (const std::vector<OperatorId>& ops : block_of.empty()
                                                ? Blocks(graph, limits.block)
                                                : GivenBlocks(graph, block_of, limits.block)) {
    blocks.emplace_back(graph, concurrency, device, limits, ops);
    states.push_back(blocks.back().CountStates());
    answer.operators = std::max(answer.operators, std::ssize(ops));
    if (states.back() == kTooMany) {
      answer.operators = std::ssize(ops);
      answer.states = kTooMany;
      answer.log2_states = EstimateLog2States(graph, ops);
      return answer;
    }
    answer.states = std::max(answer.states, states.back());
  }
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (GroupedStage& stage : blocks[b].Solve(progress, states[b]))
      answer.stages.push_back(std::move(stage));
    blocks[b].AddProfiled(&answer);
  }
  return answer;
}

}  // namespace tvm_sched::search
