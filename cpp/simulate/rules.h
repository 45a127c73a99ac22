// The rules of docs/model.md that need no times: who runs where, and how tensors get there (rules 1
// to 3).
#ifndef TVM_SCHED_SIMULATE_RULES_H_
#define TVM_SCHED_SIMULATE_RULES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simulate/problem.h"
#include "simulate/schedule.h"

namespace tvm_sched::simulate {

/// `COMPILED_RULES` in Python has their names.
enum class Rule : std::int32_t {
  kOperatorMissing,
  kOperatorTwice,
  kOperatorForbidden,
  kLoadActivation,
  kLoadShared,
  kCopySelf,
  kCopyRoute,
  kCopySource,
  kTensorTwice,
  kTensorMissing,
  kHostReadMissing,
  kHostReadTwice,
  kHostReadDevice,
  kHostReadSpurious,
  kStageUnknown,
  kStageSplit,
  kStageDirect,
  kStageStreams,
  kDeadlock,
};

/// Name of a rule, as in messages.
const char* RuleName(Rule rule);

/// A broken rule; fields that say nothing are kNone.
struct Violation {
  Rule rule;
  OperatorId op = kNone;
  TensorId tensor = kNone;
  DeviceId device = kNone;
  /// Source of a copy; for a host read on the wrong device, the right one.
  DeviceId other = kNone;
  /// Events of a deadlock, each waiting for the one before it, the first for the last.
  std::vector<EventId> cycle = {};

  std::string ToString() const;
};

/// What brings each tensor to each device, and where each operator stands.
struct Arrivals {
  static constexpr EventId kMissing = -1;
  static constexpr EventId kInPlace = -2;

  /// By tensor and device: the event that brings it there, kInPlace for host memory that the
  /// device shares.
  Matrix<EventId> event;
  /// By operator: its placement, or kNone.
  std::vector<std::int32_t> placement;
  /// By placement: the transfer that is its host read, or kNone.
  std::vector<std::int32_t> host_read;
  /// By placement: the first of its stage; the placement itself outside of stages.
  std::vector<std::int32_t> leader;
  /// By transfer: whether its tensor is there from the start, so that it takes no time and
  /// no channel.
  std::vector<bool> resident;
  /// By device: whether streams of it overlap.
  std::vector<bool> overlaps;
};

/// Whether an operator placed like this reads `tensor` from the memory of its device.
inline bool ReadsFromDevice(const Problem& problem, const Placement& placement, TensorId tensor) {
  return !(placement.direct && problem.tensors[tensor].in_host_memory());
}

/// Finds how tensors travel and what breaks rules 1 to 3.
/// \param limit Violations after this many are not listed.
Arrivals FindArrivals(const Problem& problem, const Schedule& schedule, std::size_t limit,
                      std::vector<Violation>* violations);

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_RULES_H_
