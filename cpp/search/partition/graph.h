// A graph to be cut into pipeline stages: what the partitioning algorithms look at. Python makes it
// of a tvm_sched.pipeline.PartitionProblem.
#ifndef TVM_SCHED_SEARCH_PARTITION_GRAPH_H_
#define TVM_SCHED_SEARCH_PARTITION_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "simulate/problem.h"

namespace tvm_sched::partition {

using NodeId = std::int32_t;
using simulate::kNone;
using simulate::Rows;

/// What one tensor costs a stage that gets it or sends it.
struct Tensor {
  NodeId producer = kNone;  // kNone: it comes from outside, to each stage that reads it
  double transfer = 0;      // time to bring it into a stage, or out of it
  double size = 0;          // bytes in fast memory
  bool leaves = false;      // an output of the model: its producer's stage always sends it
};

struct Graph {
  std::vector<double> work;        // time of each node
  std::vector<double> parameters;  // bytes of each node's parameters
  std::vector<Tensor> tensors;
  Rows<NodeId> readers;                                     // of each tensor, distinct
  Rows<std::int32_t> made, read;                            // tensors of each node
  Rows<NodeId> predecessors;                                // distinct
  Rows<NodeId> successors;                                  // distinct
  double memory = std::numeric_limits<double>::infinity();  // bytes of a stage's fast memory
  double overflow_time = 0;  // time to stream a byte of parameters that does not fit

  std::size_t nodes() const { return work.size(); }
  /// Whether parameters can overflow, so that a stage's peak memory matters.
  bool limited() const {
    return overflow_time > 0 && memory < std::numeric_limits<double>::infinity();
  }
};

/// Builds `made`, `read`, `predecessors` and `successors` from tensors and readers.
void Finish(Graph& graph);

using Order = std::vector<NodeId>;

/// Whether `order` holds each node once, after its predecessors.
bool IsTopological(const Graph& graph, std::span<const NodeId> order);

}  // namespace tvm_sched::partition

#endif  // TVM_SCHED_SEARCH_PARTITION_GRAPH_H_
