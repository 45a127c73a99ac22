// A scheduling problem in integers: what the simulator looks at. Python makes it of a
// tvm_sched.Problem.
#ifndef TVM_SCHED_SIMULATE_PROBLEM_H_
#define TVM_SCHED_SIMULATE_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "simulate/concurrency.h"
#include "simulate/units.h"

namespace tvm_sched::simulate {

using OperatorId = std::int32_t;
using TensorId = std::int32_t;
using DeviceId = std::int32_t;
using ChannelId = std::int32_t;

/// Host memory, where a device is expected; nothing, where any other index is.
inline constexpr std::int32_t kHost = -1;
inline constexpr std::int32_t kNone = -1;

/// Rows of different lengths in one block of memory.
template <typename T>
struct Rows {
  std::vector<std::int64_t> offset = {0};
  std::vector<T> value;

  std::size_t size() const { return offset.size() - 1; }
  std::span<const T> operator[](std::size_t row) const {
    return {value.data() + offset[row], value.data() + offset[row + 1]};
  }
  /// Ends the row that was being appended to `value`.
  void EndRow() { offset.push_back(static_cast<std::int64_t>(value.size())); }
};

/// A table with a fixed number of columns.
template <typename T>
struct Matrix {
  std::size_t columns = 0;
  std::vector<T> value;

  Matrix() = default;
  Matrix(std::size_t rows, std::size_t columns, T fill)
      : columns(columns), value(rows * columns, fill) {}

  T& operator()(std::size_t row, std::size_t column) { return value[row * columns + column]; }
  const T& operator()(std::size_t row, std::size_t column) const {
    return value[row * columns + column];
  }
};

struct Tensor {
  Bytes size;
  /// Operator that makes it; kNone for graph inputs and parameters, which lie in host
  /// memory.
  OperatorId producer = kNone;
  /// Wherever it is, it stays to the end of the run: parameters and the model's outputs.
  bool stays = false;
  /// A parameter that remains from the run before on each device to which a schedule brings
  /// it: its transfers take no time and no channel, unless it is evicted (docs/model.md, "Cold and
  /// warm").
  bool resident = false;

  bool in_host_memory() const { return producer == kNone; }
};

struct Device {
  Bytes memory;
  bool shares_host_memory = false;
  /// Where streams overlap: what each stream but one adds before the first operator, and
  /// what an operator takes more that waits for one of another stream.
  Nanoseconds stream_time, wait_time;
};

struct Problem {
  /// Distinct tensors that each operator reads and writes.
  Rows<TensorId> inputs, outputs;
  std::vector<Tensor> tensors;
  std::vector<Device> devices;
  /// By operator and device; kNever where the operator cannot run that way.
  Matrix<Nanoseconds> operator_time, direct_time;
  /// By operator and device: for how long a direct read occupies the device's bus.
  Matrix<Nanoseconds> host_read_time;
  /// By source + 1 and target + 1, so that row and column 0 are host memory: a route, or
  /// kNone.
  Matrix<std::int32_t> route;
  Rows<ChannelId> route_channels;
  /// Routes of one bandwidth and latency share a row of `transfer_time`.
  std::vector<std::int32_t> route_speed;
  /// By speed and tensor.
  Matrix<Nanoseconds> transfer_time;
  /// A route of no channel that takes no time; no two places are joined by it.
  std::int32_t resident_route = kNone;
  std::int32_t channels = 0;
  Concurrency concurrency;
  /// By operator, what searches add to its end where they judge a schedule, besides what
  /// follows it: with it a model among several counts as later than it ends. Empty: nothing. A run
  /// knows nothing of it.
  std::vector<Nanoseconds> lag;

  std::size_t operators() const { return inputs.size(); }
  Nanoseconds Lag(OperatorId op) const { return lag.empty() ? Nanoseconds{} : lag[op]; }
  std::int32_t RouteOf(DeviceId source, DeviceId target) const {
    return route(source + 1, target + 1);
  }
  /// The route of a tensor: of one that is resident `resident_route`, where there is any.
  std::int32_t RouteFor(TensorId tensor, DeviceId source, DeviceId target) const {
    const std::int32_t found = RouteOf(source, target);
    return found != kNone && tensors[tensor].resident ? resident_route : found;
  }
  Nanoseconds TransferTime(TensorId tensor, std::int32_t route) const {
    return transfer_time(route_speed[route], tensor);
  }
};

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_PROBLEM_H_
