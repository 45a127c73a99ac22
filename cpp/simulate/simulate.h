// Prices a schedule: when each kernel and transfer runs (docs/model.md, "Time of a schedule").
#ifndef TVM_SCHED_SIMULATE_SIMULATE_H_
#define TVM_SCHED_SIMULATE_SIMULATE_H_

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "simulate/problem.h"
#include "simulate/rules.h"
#include "simulate/schedule.h"
#include "simulate/units.h"

namespace tvm_sched::simulate {

/// A schedule that cannot be run.
class BrokenRule : public std::runtime_error {
 public:
  explicit BrokenRule(Violation violation)
      : std::runtime_error(violation.ToString()), violation_(std::move(violation)) {}
  const Violation& violation() const { return violation_; }

 private:
  Violation violation_;
};

/// Start and end of each event; a host read begins with its operator and ends with its bus
/// time.
struct Times {
  std::vector<Nanoseconds> start, end;
  /// End of the last kernel.
  Nanoseconds latency;
};

/// A schedule with what the rules found and, where it can be run, its times.
struct Simulation {
  Arrivals arrivals;
  Times times;
  std::vector<Violation> violations;
};

/// Checks rules 1 to 4 and computes the times.
///
/// Linear in events and tensors read. Times are set only where no rule is broken.
/// \param limit Most violations to list.
Simulation Simulate(const Problem& problem, const Schedule& schedule, std::size_t limit);

/// The same; throws BrokenRule at the first violation.
Simulation SimulateOrThrow(const Problem& problem, const Schedule& schedule);

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_SIMULATE_H_
