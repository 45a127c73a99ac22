// HIOS: operators on several devices by longest paths or by a table of mappings, and in stages.
#ifndef TVM_SCHED_SEARCH_HIOS_H_
#define TVM_SCHED_SEARCH_HIOS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "search/task_graph.h"
#include "simulate/concurrency.h"
#include "simulate/schedule.h"

namespace tvm_sched::search {

/// Operators of one device that start together; a single one where it runs alone.
using Stage = std::vector<OperatorId>;

/// The stages of each device, in order.
using Stages = std::vector<std::vector<Stage>>;

/// Called now and then with parts done and parts in all; it may throw to stop the work.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Device of each operator: HIOS-LP, Algorithm 1 without line 17. Operators by themselves.
std::vector<DeviceId> MapLongestPaths(const TaskGraph& graph, const Progress& progress);

/// Device of each operator: HIOS-MR, Algorithm 3 without line 27.
/// \param first_anywhere Our variant: each operator may be on any device. As printed, the first is
/// on the first device and the i-th on one of the first i, which loses nothing only on equal
/// devices.
std::vector<DeviceId> MapByRecords(const TaskGraph& graph, bool first_anywhere,
                                   const Progress& progress);

/// When operators end that start in order of priority as soon as device and inputs allow, and
/// nothing else contends (Algorithm 1, lines 10 to 13); kFar where one cannot run.
std::int64_t LatencyOf(const TaskGraph& graph, const std::vector<OperatorId>& order,
                       const std::vector<DeviceId>& device);

/// Algorithm 2: slides a window over the operators of each device and puts independent
/// neighbours in one stage where that makes the latency less.
///
/// As in the paper's text (IV-B), a group that does not make the latency less leaves no trace. Line
/// 11 as printed keeps it in the graph, so later stages could grow beyond the window.
/// \param window Most operators of a stage.
/// \param streams Most streams of a stage (the paper's L): its operators get them in turn.
Stages GroupNeighbours(const TaskGraph& graph, const simulate::Concurrency& concurrency,
                       const std::vector<DeviceId>& device, int window, int streams,
                       const Progress& progress);

/// Stages in an order in which each can be appended after all that it waits for.
std::vector<std::pair<DeviceId, Stage>> InOrder(const TaskGraph& graph,
                                                const simulate::Concurrency& concurrency,
                                                const Stages& stages, int streams);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_HIOS_H_
