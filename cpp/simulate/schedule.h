// A schedule in the integers of its problem, and the events that it is made of.
#ifndef TVM_SCHED_SIMULATE_SCHEDULE_H_
#define TVM_SCHED_SIMULATE_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulate/problem.h"

namespace tvm_sched::simulate {

struct Placement {
  OperatorId op = kNone;
  DeviceId device = kNone;
  bool direct = false;
  std::int32_t stream = 0;
  /// Placements of one device with the same stage above 0 start and end together.
  std::int32_t stage = 0;
};

/// Whether two placements start and end together.
inline bool SameStage(const Placement& a, const Placement& b) {
  return a.stage > 0 && a.stage == b.stage && a.device == b.device;
}

enum class TransferKind : std::int32_t { kLoad = 0, kCopy = 1, kHostRead = 2 };

struct Transfer {
  TransferKind kind = TransferKind::kLoad;
  /// The tensor of a load or copy, the operator of a host read.
  std::int32_t item = kNone;
  DeviceId source = kHost;
  DeviceId device = kNone;
  /// Whether a parameter leaves the device after its last reader there.
  bool evict = false;
};

struct Schedule {
  std::vector<Placement> placements;
  std::vector<Transfer> transfers;

  std::size_t events() const { return placements.size() + transfers.size(); }
};

/// Position of a placement, or the number of placements plus the position of a transfer.
using EventId = std::int32_t;

/// Throws std::out_of_range where the schedule names an operator, tensor or device that the
/// problem lacks.
void CheckIndices(const Problem& problem, const Schedule& schedule);

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_SCHEDULE_H_
