#include "search/heft.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "search/partial_schedule.h"

namespace tvm_sched::search {
namespace {

/// The extension in either mode that ends first; false where the operator cannot run there.
bool BestExtension(PartialSchedule* state, OperatorId op, DeviceId device, Extension* best) {
  Extension direct;
  const bool loaded = state->FindExtension(op, device, false, best);
  if (!state->FindExtension(op, device, true, &direct)) return loaded;
  if (!loaded || direct.end < best->end) std::swap(*best, direct);
  return true;
}

/// PEFT's optimistic cost table, by operator and device: the least time from the end of an
/// operator on the device to the end of the run.
simulate::Matrix<double> OptimisticCosts(const TaskGraph& graph) {
  simulate::Matrix<double> table(graph.size(), graph.devices(), 0);
  const auto& order = graph.TopologicalOrder();
  for (auto o = order.rbegin(); o != order.rend(); ++o) {
    for (std::size_t d = 0; d < graph.devices(); ++d) {
      table(*o, d) = static_cast<double>(graph.Lag(*o));
      for (const Neighbour& next : graph.Successors(*o)) {
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t other = 0; other < graph.devices(); ++other) {
          const std::int64_t time = graph.Time(next.op, static_cast<DeviceId>(other));
          const double copy = other == d ? 0 : graph.MeanCommunication(next.edge);
          least = std::min(least, table(next.op, other) + static_cast<double>(time) + copy);
        }
        table(*o, d) = std::max(table(*o, d), least);
      }
    }
  }
  return table;
}

}  // namespace

simulate::Schedule ListSchedule(const Instance& instance, const TaskGraph& graph,
                                ListMethod method) {
  const bool peft = method == ListMethod::kPeft;
  const auto table = peft ? OptimisticCosts(graph) : simulate::Matrix<double>{};
  std::vector<double> rank = peft ? std::vector<double>(graph.size()) : graph.UpwardRank();
  for (std::size_t o = 0; peft && o < graph.size(); ++o) {
    for (std::size_t d = 0; d < graph.devices(); ++d)
      rank[o] += table(o, d) / static_cast<double>(graph.devices());
  }
  PartialSchedule state(instance, Growth::Plain(Growth::Insertion::kAll));
  std::vector<std::size_t> waits(graph.size());
  std::priority_queue<std::pair<double, OperatorId>> free;  // the higher rank, then the later one
  for (std::size_t o = 0; o < graph.size(); ++o) {
    waits[o] = graph.Predecessors(static_cast<OperatorId>(o)).size();
    if (waits[o] == 0) free.push({rank[o], -static_cast<OperatorId>(o)});
  }
  while (!free.empty()) {
    const OperatorId op = -free.top().second;
    free.pop();
    Extension extension, best;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t d = 0; d < graph.devices(); ++d) {
      if (!BestExtension(&state, op, static_cast<DeviceId>(d), &extension)) continue;
      const double value = static_cast<double>(extension.end.count) + (peft ? table(op, d) : 0);
      if (value >= least) continue;
      least = value;
      std::swap(best, extension);
    }
    if (least == std::numeric_limits<double>::infinity()) return {};
    state.Place(best);
    for (const Neighbour& next : graph.Successors(op)) {
      if (--waits[next.op] == 0) free.push({rank[next.op], -next.op});
    }
  }
  return state.ScheduleByStart();
}

}  // namespace tvm_sched::search
