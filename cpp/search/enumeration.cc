#include "search/enumeration.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_set>

namespace tvm_sched::search {
namespace {

constexpr std::int64_t kUnfinished = std::numeric_limits<std::int64_t>::max() / 4;
/// Where an operator could have started before the last start: another order has that schedule.
constexpr std::int64_t kEarlier = -1;

/// Bytes of the states to keep: the search stops there, like after the last state.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

/// Appends a number of at least 0 in units of 7 bits, so that numbers in sequence are told apart.
void Append(std::string& text, std::int64_t number) {
  for (; number >= 128; number >>= 7) text.push_back(static_cast<char>((number & 127) | 128));
  text.push_back(static_cast<char>(number));
}

/// A part of a schedule. `free`: when each device becomes free; `start` and `arrival`: by operator
/// and device.
struct State {
  std::uint64_t done = 0;
  std::int64_t last = 0;
  std::vector<std::int64_t> free, start, arrival;
};

class Enumeration {
 public:
  Enumeration(const DelayedGraph& graph, std::int64_t deadline, std::int64_t states)
      : graph_(graph),
        deadline_(deadline),
        most_(states),
        count_(graph.time.size()),
        devices_(graph.devices),
        before_(count_),
        after_(count_),
        head_(Heads(true)),
        tail_(Heads(false)) {
    for (const auto& edge : graph.edges) {
      before_[edge.to] |= std::uint64_t{1} << edge.from;
      after_[edge.from] |= std::uint64_t{1} << edge.to;
    }
    delay_.assign(count_ * count_, -1);
    for (const auto& edge : graph.edges) delay_[edge.from * count_ + edge.to] = edge.delay;
    twin_.assign(count_, 0);
    for (std::size_t a = 0; a < count_; ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        bool same = graph.time[a] == graph.time[b];
        for (std::size_t c = 0; same && c < count_; ++c) {
          same = delay_[a * count_ + c] == delay_[b * count_ + c] &&
                 delay_[c * count_ + a] == delay_[c * count_ + b];
        }
        if (same) twin_[a] |= std::uint64_t{1} << b;
      }
    }
    by_tail_.resize(count_);
    std::iota(by_tail_.begin(), by_tail_.end(), 0);
    std::stable_sort(by_tail_.begin(), by_tail_.end(),
                     [this](auto a, auto b) { return tail_[a] > tail_[b]; });
  }

  Enumerated Run() {
    State root;
    root.free.assign(devices_, 0);
    root.arrival.assign(count_ * devices_, 0);
    found_.complete = Extend(root) || !stopped_;
    return found_;
  }

 private:
  /// Least times before each operator's start, or after its end, over all devices of its
  /// neighbours: of several neighbours those with the longest delays share its device.
  std::vector<std::int64_t> Heads(bool forward) const {
    std::vector<std::int64_t> least(count_, 0);
    for (std::size_t n = 0; n < count_; ++n) {
      const std::size_t o = forward ? n : count_ - 1 - n;
      struct Neighbour {
        std::int64_t apart, head, time;
      };
      std::vector<Neighbour> near;
      for (const auto& edge : graph_.edges) {
        if (static_cast<std::size_t>(forward ? edge.to : edge.from) != o) continue;
        const std::int32_t other = forward ? edge.from : edge.to;
        const std::int64_t end = least[other] + graph_.time[other];
        near.push_back({end + edge.delay, least[other], graph_.time[other]});
      }
      std::sort(near.begin(), near.end(), [](auto& a, auto& b) { return a.apart > b.apart; });
      std::int64_t best = kUnfinished;
      for (std::size_t k = 0; k <= near.size(); ++k) {
        std::vector<Neighbour> here(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(k));
        std::sort(here.begin(), here.end(), [](auto& a, auto& b) { return a.head < b.head; });
        std::int64_t end = 0;
        for (const auto& each : here) end = std::max(end, each.head) + each.time;
        best = std::min(best, std::max(end, k < near.size() ? near[k].apart : 0));
      }
      for (const auto& each : near) best = std::max(best, each.head + each.time);
      least[o] = best;
    }
    return least;
  }

  bool Has(std::uint64_t set, std::size_t o) const { return (set >> o & 1) != 0; }

  /// Whether the rest are operators without successors whose inputs came from done ones.
  bool OnlyLeaves(const State& state) const {
    for (std::size_t o = 0; o < count_; ++o) {
      if (!Has(state.done, o) && (after_[o] != 0 || (before_[o] & ~state.done) != 0)) return false;
    }
    return true;
  }

  /// The first operator whose inputs arrive on every device no later than those of all others
  /// that are left; `count_` if there is none.
  std::size_t Earliest(const State& state) const {
    for (std::size_t o = 0; o < count_; ++o) {
      bool first = !Has(state.done, o);
      for (std::size_t b = 0; first && b < count_; ++b) {
        for (std::size_t d = 0; first && !Has(state.done, b) && d < devices_; ++d) {
          first = state.arrival[o * devices_ + d] <= state.arrival[b * devices_ + d];
        }
      }
      if (first) return o;
    }
    return count_;
  }

  /// Computes the starts; false if an operator or the work of several can't end in time.
  bool Refine(State& state) {
    state.start.assign(count_ * devices_, kUnfinished);
    head_now_ = head_;
    for (std::size_t o = 0; o < count_; ++o) {
      if (Has(state.done, o)) continue;
      std::int64_t& head = head_now_[o];
      for (std::uint64_t rest = before_[o] & ~state.done; rest != 0; rest &= rest - 1) {
        const int u = __builtin_ctzll(rest);
        head = std::max(head, head_now_[u] + graph_.time[u]);
      }
      std::int64_t least = kUnfinished;
      for (std::size_t d = 0; d < devices_; ++d) {
        const std::int64_t raw = std::max(state.arrival[o * devices_ + d], state.free[d]);
        std::int64_t start = std::max({raw, state.last, head});
        least = std::min(least, start);
        if (start + graph_.time[o] + tail_[o] > deadline_) {
          start = kUnfinished;
        } else if (raw < state.last) {
          start = kEarlier;
        } else {
          start = raw;
        }
        state.start[o * devices_ + d] = start;
      }
      head = least;
      if (head + graph_.time[o] + tail_[o] > deadline_) return false;
    }
    return Fits(state);
  }

  /// Whether the work of the operators with at least some tail fits between the starts that
  /// devices allow and that tail.
  bool Fits(const State& state) {
    least_.assign(devices_, kUnfinished);
    std::int64_t work = 0;
    for (const std::size_t o : by_tail_) {
      if (Has(state.done, o)) continue;
      work += graph_.time[o];
      std::int64_t room = 0;
      for (std::size_t d = 0; d < devices_; ++d) {
        const std::int64_t start = state.start[o * devices_ + d];
        if (start != kUnfinished) {
          least_[d] = std::min(least_[d], std::max({start, state.free[d], state.last, head_[o]}));
        }
        room += std::max<std::int64_t>(0, deadline_ - tail_[o] - least_[d]);
      }
      if (work > room) return false;
    }
    return true;
  }

  /// For each device the numbers that decide what may follow: from when it is free, and the starts.
  std::vector<std::string> Numbers(const State& state) const {
    std::vector<std::string> numbers(devices_);
    for (std::size_t d = 0; d < devices_; ++d) {
      const std::int64_t free = std::max(state.free[d], state.last);
      Append(numbers[d], free);
      for (std::size_t o = 0; o < count_; ++o) {
        if (Has(state.done, o) || ((before_[o] & state.done) == 0 && before_[o] != 0)) continue;
        const std::int64_t start = state.start[o * devices_ + d];
        const bool late = start == kUnfinished;
        Append(numbers[d], late ? 0 : start == kEarlier ? 1 : start - free + 2);
      }
    }
    return numbers;
  }

  bool Extend(State& state) {
    const std::uint64_t all = count_ == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count_) - 1;
    if (state.done == all) {
      found_.end = *std::max_element(state.free.begin(), state.free.end());
      return true;
    }
    if (++found_.states > most_) {
      stopped_ = true;
      return false;
    }
    const bool leaves = OnlyLeaves(state);
    if (leaves) state.last = 0;
    if (!Refine(state)) return false;
    const std::vector<std::string> of_device = Numbers(state);
    std::vector<std::string> sorted = of_device;
    std::sort(sorted.begin(), sorted.end());
    std::string whole;
    Append(whole, static_cast<std::int64_t>(state.done >> 32));
    Append(whole, static_cast<std::int64_t>(state.done & 0xffffffffULL));
    for (const std::string& device : sorted) whole += device;
    bytes_ += whole.size();
    if (!known_.insert(std::move(whole)).second) return false;
    if (bytes_ > kMostBytes) {
      stopped_ = true;
      return false;
    }
    struct Choice {
      std::int64_t start, tail;
      std::size_t o, d;
    };
    std::vector<Choice> choices;
    const std::size_t only = leaves ? Earliest(state) : count_;
    for (std::size_t o = 0; o < count_; ++o) {
      if (Has(state.done, o) || (before_[o] & ~state.done) != 0) continue;
      if (only != count_ ? o != only : (twin_[o] & ~state.done) != 0) continue;
      for (std::size_t d = 0; d < devices_; ++d) {
        const std::int64_t start = state.start[o * devices_ + d];
        if (start == kUnfinished || start == kEarlier) continue;
        bool same = false;
        for (std::size_t e = 0; !same && e < d; ++e) same = of_device[e] == of_device[d];
        if (!same) choices.push_back({start, tail_[o] + graph_.time[o], o, d});
      }
    }
    std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
      if (a.start != b.start) return a.start < b.start;
      if (a.tail != b.tail) return a.tail > b.tail;
      return a.o != b.o ? a.o < b.o : a.d < b.d;
    });
    for (const Choice& choice : choices) {
      State next;
      next.done = state.done | std::uint64_t{1} << choice.o;
      next.last = choice.start;
      next.free = state.free;
      next.arrival = state.arrival;
      const std::int64_t end = choice.start + graph_.time[choice.o];
      next.free[choice.d] = end;
      for (std::uint64_t rest = after_[choice.o]; rest != 0; rest &= rest - 1) {
        const std::size_t v = __builtin_ctzll(rest);
        const std::int64_t delay = delay_[choice.o * count_ + v];
        for (std::size_t d = 0; d < devices_; ++d) {
          std::int64_t& arrival = next.arrival[v * devices_ + d];
          arrival = std::max(arrival, d == choice.d ? end : end + delay);
        }
      }
      found_.order.push_back(static_cast<std::int64_t>(choice.o));
      found_.device.push_back(static_cast<std::int64_t>(choice.d));
      if (Extend(next)) return true;
      found_.order.pop_back();
      found_.device.pop_back();
      if (stopped_) return false;
    }
    return false;
  }

  const DelayedGraph& graph_;
  std::int64_t deadline_, most_;
  std::size_t count_, devices_;
  std::vector<std::uint64_t> before_, after_, twin_;
  std::vector<std::int64_t> head_, tail_, delay_, head_now_, least_;
  std::vector<std::size_t> by_tail_;
  std::unordered_set<std::string> known_;
  std::size_t bytes_ = 0;
  Enumerated found_;
  bool stopped_ = false;
};

}  // namespace

Enumerated Enumerate(const DelayedGraph& graph, std::int64_t deadline, std::int64_t states) {
  return Enumeration(graph, deadline, states).Run();
}

}  // namespace tvm_sched::search
