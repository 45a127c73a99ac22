#include "search/partition/segment_costs.h"

#include <algorithm>

namespace tvm_sched::partition {

namespace {

constexpr std::size_t kEnd = static_cast<std::size_t>(-1);

double Overflow(const Graph& graph, double parameters, double peak) {
  return std::max(parameters + peak - graph.memory, 0.0) * graph.overflow_time;
}

}  // namespace

SegmentCosts::SegmentCosts(const Graph& graph, std::span<const NodeId> order)
    : graph_(graph),
      order_(order),
      position_(graph.nodes()),
      next_reader_(graph.tensors.size(), 0),
      difference_(graph.nodes() + 1, 0.0),
      row_(graph.nodes()),
      peak_(graph.limited() ? graph.nodes() : 0) {
  for (std::size_t i = 0; i < order.size(); ++i) position_[order[i]] = i;
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    const std::size_t begin = reader_positions_.value.size();
    for (NodeId reader : graph.readers[t]) {
      reader_positions_.value.push_back(static_cast<std::int32_t>(position_[reader]));
    }
    std::sort(reader_positions_.value.begin() + static_cast<std::ptrdiff_t>(begin),
              reader_positions_.value.end());
    reader_positions_.EndRow();
    const Tensor& tensor = graph.tensors[t];
    const std::span<const std::int32_t> readers = reader_positions_[t];
    if (tensor.producer == kNone) {  // enters the segment of its first reader
      if (!readers.empty()) difference_[readers.front()] += tensor.transfer;
    } else if (!readers.empty() || tensor.leaves) {  // leaves a segment that ends before the last
      difference_[position_[tensor.producer]] += tensor.transfer;
      if (!tensor.leaves) difference_[readers.back()] -= tensor.transfer;
    }
  }
}

std::span<const double> SegmentCosts::Row(std::size_t first, double limit) {
  if (first > 0) Leave(first - 1);
  double work = 0, transfers = 0;
  std::size_t length = 0;
  for (std::size_t r = first; r < order_.size(); ++r, ++length) {
    work += graph_.work[order_[r]];
    if (work >= limit) break;
    transfers += difference_[r];
    row_[length] = work + transfers;
  }
  const std::span<double> row{row_.data(), length};
  if (graph_.limited()) AddOverflow(first, row);
  return row;
}

void SegmentCosts::Leave(std::size_t first) {
  const NodeId left = order_[first];
  for (std::int32_t t : graph_.made[left]) {
    // Its producer is left behind: from now on it enters the segment of its first reader.
    const std::span<const std::int32_t> readers = reader_positions_[t];
    if (readers.empty()) continue;
    const double transfer = graph_.tensors[t].transfer;
    if (!graph_.tensors[t].leaves) difference_[readers.back()] += transfer;
    difference_[readers.front()] += transfer;
  }
  for (std::int32_t t : graph_.read[left]) {
    const std::span<const std::int32_t> readers = reader_positions_[t];
    const std::size_t next = ++next_reader_[t];
    if (next < readers.size()) difference_[readers[next]] += graph_.tensors[t].transfer;
  }
}

void SegmentCosts::AddOverflow(std::size_t first, std::span<double> row) {
  peak_.Clear();
  double parameters = 0;
  for (std::size_t length = 0; length < row.size(); ++length) {
    const std::size_t r = first + length;
    const NodeId v = order_[r];
    parameters += graph_.parameters[v];
    for (std::int32_t t : graph_.read[v]) {
      const Tensor& tensor = graph_.tensors[t];
      if (tensor.producer != kNone && position_[tensor.producer] >= first) continue;
      const std::span<const std::int32_t> readers = reader_positions_[t];
      const auto here =
          std::lower_bound(readers.begin(), readers.end(), static_cast<std::int32_t>(r));
      const bool earlier =
          here != readers.begin() && static_cast<std::size_t>(*(here - 1)) >= first;
      peak_.Hold(earlier ? static_cast<std::size_t>(*(here - 1)) - first + 1 : 0, length,
                 tensor.size);
    }
    for (std::int32_t t : graph_.made[v]) {
      const std::span<const std::int32_t> readers = reader_positions_[t];
      std::size_t last = readers.empty() ? r : static_cast<std::size_t>(readers.back());
      if (graph_.tensors[t].leaves) last = kEnd - 1;
      peak_.Hold(length, last == kEnd - 1 ? last : last - first, graph_.tensors[t].size);
    }
    row[length] += Overflow(graph_, parameters, peak_.Largest());
  }
}

double StageCost(const Graph& graph, std::span<const NodeId> nodes) {
  std::vector<std::size_t> position(graph.nodes(), kEnd);
  double work = 0, transfers = 0, parameters = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    position[nodes[i]] = i;
    work += graph.work[nodes[i]];
    parameters += graph.parameters[nodes[i]];
  }
  PeakMemory peak(nodes.size());
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    const bool inside = tensor.producer != kNone && position[tensor.producer] != kEnd;
    bool elsewhere = tensor.leaves;
    std::size_t last = kEnd;
    for (NodeId reader : graph.readers[t]) {
      if (position[reader] == kEnd) {
        elsewhere = true;
      } else {
        last = last == kEnd ? position[reader] : std::max(last, position[reader]);
      }
    }
    if (inside ? elsewhere : last != kEnd) transfers += tensor.transfer;
    if (inside) {
      const std::size_t made = position[tensor.producer];
      peak.Hold(made, elsewhere ? nodes.size() - 1 : (last == kEnd ? made : last), tensor.size);
    } else if (last != kEnd) {
      peak.Hold(0, last, tensor.size);
    }
  }
  const double overflow = graph.limited() ? Overflow(graph, parameters, peak.Largest()) : 0;
  return work + transfers + overflow;
}

}  // namespace tvm_sched::partition
