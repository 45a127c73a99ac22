// A problem with data that searches derive once: neighbours, longest paths, routes for parameters.
#ifndef TVM_SCHED_SEARCH_INSTANCE_H_
#define TVM_SCHED_SEARCH_INSTANCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulate/problem.h"

namespace tvm_sched::search {

using simulate::Bytes;
using simulate::ChannelId;
using simulate::DeviceId;
using simulate::kHost;
using simulate::kNever;
using simulate::kNone;
using simulate::Nanoseconds;
using simulate::OperatorId;
using simulate::TensorId;

struct Instance {
  /// \param problem Outlives the instance.
  explicit Instance(const simulate::Problem& problem);
  explicit Instance(simulate::Problem&&) = delete;

  const simulate::Problem& problem;
  /// Operators next to each operator, ascending, distinct.
  simulate::Rows<OperatorId> predecessors, successors;
  /// Operators that read each tensor.
  simulate::Rows<OperatorId> readers;
  /// Longest path from the start of each operator to the end of the run, each on its best
  /// device, with the lag of the last; `tail` is the same from its end.
  std::vector<Nanoseconds> rank, tail;
  /// Neighbours through which a parameter may be loaded into each device: on other buses,
  /// the two nearest on each, joined without a bus.
  simulate::Rows<DeviceId> transits;
  /// Whether each channel leads from host memory to a device.
  std::vector<bool> is_bus;
  /// Devices that share host memory.
  std::vector<DeviceId> sharing;

  std::size_t operators() const { return problem.operators(); }
  std::size_t tensors() const { return problem.tensors.size(); }
  std::size_t devices() const { return problem.devices.size(); }
  /// Whether a route takes a bus, and so may delay loads.
  bool UsesBus(std::int32_t route) const;
  bool OnHost(TensorId tensor) const { return problem.tensors[tensor].in_host_memory(); }
  Nanoseconds Duration(OperatorId op, DeviceId device, bool direct) const {
    return (direct ? problem.direct_time : problem.operator_time)(op, device);
  }
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_INSTANCE_H_
