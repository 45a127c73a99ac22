// Contents of each device's memory over time (docs/model.md, "Memory over time").
#ifndef TVM_SCHED_SIMULATE_DEVICE_MEMORY_H_
#define TVM_SCHED_SIMULATE_DEVICE_MEMORY_H_

#include <utility>
#include <vector>

#include "simulate/problem.h"
#include "simulate/schedule.h"
#include "simulate/simulate.h"
#include "simulate/units.h"

namespace tvm_sched::simulate {

/// A tensor takes its size on a device from `begin` until `end`; kNever where it stays to
/// the end of the run.
struct Holding {
  TensorId tensor;
  DeviceId device;
  Nanoseconds begin, end;
};

/// Every tensor on every device that takes room for some time.
std::vector<Holding> FindHoldings(const Problem& problem, const Schedule& schedule,
                                  const Simulation& simulation);

/// Bytes held from a moment until the next one of the list.
struct Level {
  Nanoseconds time;
  Bytes held;
};

/// By device: the levels in order of time; what ends at a moment is freed before what begins
/// then is taken.
std::vector<std::vector<Level>> MemoryProfile(const Problem& problem,
                                              const std::vector<Holding>& holdings);

/// By device: most bytes held at once.
std::vector<Bytes> PeakMemory(const Problem& problem, const std::vector<Holding>& holdings);

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_DEVICE_MEMORY_H_
