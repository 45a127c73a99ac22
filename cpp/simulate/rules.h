// The rules of docs/model.md that need no times: who runs where, and how tensors get there (rules 1
// to 3).
#ifndef TVM_SCHED_SIMULATE_RULES_H_
#define TVM_SCHED_SIMULATE_RULES_H_

#include <string>
#include <vector>

#include "problem.h"
#include "schedule.h"

namespace tvm_sched::simulate {

/*! \brief `COMPILED_RULES` in Python has their names. */
enum class Rule : int32_t {
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

/*! \brief Name of a rule, as in messages. */
const char* RuleName(Rule rule);

/*! \brief A broken rule; fields that say nothing are kNone. */
struct Violation {
  Rule rule;
  OperatorId op = kNone;
  TensorId tensor = kNone;
  DeviceId device = kNone;
  /*! \brief Source of a copy; for a host read on the wrong device, the right one. */
  DeviceId other = kNone;
  /*! \brief Events of a deadlock, each waiting for the one before it, the first for the last. */
  std::vector<EventId> cycle = {};

  std::string ToString() const;
};

/*! \brief What brings each tensor to each device, and where each operator stands. */
struct Arrivals {
  static constexpr EventId kMissing = -1;
  static constexpr EventId kInPlace = -2;

  /*! \brief By tensor and device: the event that brings it there, kInPlace for host memory that the
   * device shares. */
  Matrix<EventId> event;
  /*! \brief By operator: its placement, or kNone. */
  std::vector<int32_t> placement;
  /*! \brief By placement: the transfer that is its host read, or kNone. */
  std::vector<int32_t> host_read;
  /*! \brief By placement: the first of its stage; the placement itself outside of stages. */
  std::vector<int32_t> leader;
  /*! \brief By transfer: whether its tensor is there from the start, so that it takes no time and
   * no channel. */
  std::vector<bool> resident;
  /*! \brief By device: whether streams of it overlap. */
  std::vector<bool> overlaps;
};

/*! \brief Whether an operator placed like this reads `tensor` from the memory of its device. */
inline bool ReadsFromDevice(const Problem& problem, const Placement& placement, TensorId tensor) {
  return !(placement.direct && problem.tensors[tensor].in_host_memory());
}

/*!
 * \brief Finds how tensors travel and what breaks rules 1 to 3.
 * \param limit Violations after this many are not listed.
 */
Arrivals FindArrivals(const Problem& problem, const Schedule& schedule, size_t limit,
                      std::vector<Violation>* violations);

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_RULES_H_
