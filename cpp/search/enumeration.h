// Decides whether operators on equal devices, with delays between devices that no channel
// limits, can end by a deadline: all states of schedules, by order of starts.
#ifndef TVM_SCHED_SEARCH_ENUMERATION_H_
#define TVM_SCHED_SEARCH_ENUMERATION_H_

#include <cstdint>
#include <vector>

namespace tvm_sched::search {

/// Largest number of operators of an enumeration: sets of them are bits of a word.
inline constexpr std::size_t kMostEnumerated = 64;

/// Operators in topological order on equal devices.
struct DelayedGraph {
  struct Edge {
    std::int32_t from, to;
    /// Nanoseconds between the end of `from` and the start of `to` on different devices.
    std::int64_t delay;
  };
  /// Nanoseconds of each operator, on any device.
  std::vector<std::int64_t> time;
  /// At most one for each pair.
  std::vector<Edge> edges;
  std::int32_t devices = 0;
};

/// What an enumeration found.
struct Enumerated {
  /// Whether all states were looked at, or a schedule was found.
  bool complete = false;
  /// States that were looked at.
  std::int64_t states = 0;
  /// When the schedule that was found ends; -1 if none was found.
  std::int64_t end = -1;
  /// Its operators in the order of their starts on each device, and the device of each.
  std::vector<std::int64_t> order, device;
};

/// Looks for a schedule that ends by `deadline` (docs/proofs/enumeration.md, Theorem).
/// \param states States to look at, at most.
Enumerated Enumerate(const DelayedGraph& graph, std::int64_t deadline, std::int64_t states);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_ENUMERATION_H_
