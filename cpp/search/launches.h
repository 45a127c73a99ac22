// Streams within devices: which operators share one, the launch order, and the waits between them.
#ifndef TVM_SCHED_SEARCH_LAUNCHES_H_
#define TVM_SCHED_SEARCH_LAUNCHES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "search/task_graph.h"

namespace tvm_sched::search {

/// Operators in launch order; `device` and `stream` by operator.
struct Launches {
  std::vector<OperatorId> order;
  std::vector<DeviceId> device;
  std::vector<std::int32_t> stream;
};

enum class Allocation { kOne, kOpara, kNimble, kWavefront, kFewest };

/// Gives each operator a stream of its device, numbered from 0 on each; the order stays.
///
/// - kOne: stream 0.
/// - kOpara: the stream of the first predecessor that no other operator follows yet, else a new one
///   (Chen et al., "Opara", Algorithm 1). O(operators + edges).
/// - kNimble: chains of a largest matching of operators with successors in the transitive reduction
///   (Kwon et al., "Nimble", NeurIPS 2020), which a second largest matching joins where one begins
///   behind the end of another, as the authors' program does. No two independent operators share a
///   stream. O(operators^2.5).
/// - kWavefront: operators of one depth on streams of their own (Ma et al., "Rammer", OSDI 2020:
///   breadth-first waves). O(operators + edges).
/// - kFewest: the same chains of a largest matching with all that follow an operator, so that they
///   are as few as there can be while no two independent operators share a stream (Dilworth): as
///   many as operators can run at once. O(operators^2.5).
void AllocateStreams(const TaskGraph& graph, Allocation method, Launches* launches);

/// Waits between streams of a device: edges between operators on different streams of one
/// device that are left in the transitive reduction of all edges and stream orders.
///
/// None can be left out, since nothing else makes its second operator wait for its first. O(edges x
/// streams).
std::int64_t CountSynchronizations(const TaskGraph& graph, const Launches& launches);

enum class LaunchOrder { kDepthFirst, kBreadthFirst, kCriticalPath, kOpara, kOparaProgram };

/// A topological order of all operators.
///
/// - kDepthFirst: the operator that became free last; kBreadthFirst: the one that became free
/// first.
/// - kCriticalPath: the free operator with the longest path to the end.
/// - kOpara: memory-bound and compute-bound operators in turn, of each kind the free one with the
///   least demand (Algorithm 2); the one that became free first where demands are equal.
/// - kOparaProgram: the same as the authors' program has it: compute-bound ones begin, and a kind
///   without free operators loses its turn.
///
/// \param demand, memory_bound By operator; looked at by kOpara and kOparaProgram alone.
std::vector<OperatorId> OrderLaunches(const TaskGraph& graph, LaunchOrder method,
                                      std::span<const double> demand,
                                      std::span<const std::int64_t> memory_bound);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_LAUNCHES_H_
