#include "search/partition/graph.h"

#include <algorithm>

namespace tvm_sched::partition {

namespace {

using Lists = std::vector<std::vector<std::int32_t>>;

Rows<std::int32_t> RowsOf(Lists lists, bool distinct) {
  Rows<std::int32_t> rows;
  for (std::vector<std::int32_t>& list : lists) {
    if (distinct) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
    rows.value.insert(rows.value.end(), list.begin(), list.end());
    rows.EndRow();
  }
  return rows;
}

}  // namespace

void Finish(Graph& graph) {
  Lists made(graph.nodes()), read(graph.nodes()), before(graph.nodes()), after(graph.nodes());
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    const NodeId producer = graph.tensors[t].producer;
    if (producer != kNone) made[producer].push_back(static_cast<std::int32_t>(t));
    for (NodeId reader : graph.readers[t]) {
      read[reader].push_back(static_cast<std::int32_t>(t));
      if (producer == kNone) continue;
      before[reader].push_back(producer);
      after[producer].push_back(reader);
    }
  }
  graph.made = RowsOf(std::move(made), false);
  graph.read = RowsOf(std::move(read), false);
  graph.predecessors = RowsOf(std::move(before), true);
  graph.successors = RowsOf(std::move(after), true);
}

bool IsTopological(const Graph& graph, std::span<const NodeId> order) {
  const auto n = static_cast<NodeId>(graph.nodes());
  if (order.size() != graph.nodes()) return false;
  std::vector<char> seen(graph.nodes(), 0);
  for (NodeId v : order) {
    if (v < 0 || v >= n || seen[v]) return false;
    for (NodeId u : graph.predecessors[v]) {
      if (!seen[u]) return false;
    }
    seen[v] = 1;
  }
  return true;
}

}  // namespace tvm_sched::partition
