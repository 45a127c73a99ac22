// Runs a plan: each queue's steps in their order on that queue's thread, each step after the
// steps it waits for.
#ifndef TVM_SCHED_RUNTIME_EXECUTOR_H_
#define TVM_SCHED_RUNTIME_EXECUTOR_H_

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/backend.h"
#include "runtime/plan.h"
#include "runtime/queue_threads.h"

namespace tvm_sched::runtime {

/// The memory and kernels of a plan for one run; empty lists where there are no values.
struct Bindings {
  std::vector<std::byte*> buffers;  // of each buffer
  std::vector<Kernel> kernels;      // of each step; empty for copies and host reads
};

/// When each step ran, in the plan's time (a backend's time scale is divided out).
struct RunRecord {
  std::vector<Interval> steps;
  /// From the start of the run to the end of its last step.
  Nanoseconds latency{0};
  /// The longest that a step began after its predecessors had ended and its queue was free: the
  /// cost of waking threads, and how far an emulated run is from ideal devices.
  Nanoseconds largest_delay{0};
};

/// A step that failed, and why.
class StepError : public std::exception {
 public:
  StepError(int step, std::exception_ptr cause) : step_(step), cause_(std::move(cause)) {}
  int step() const { return step_; }
  const std::exception_ptr& cause() const { return cause_; }
  const char* what() const noexcept override { return "a step of the plan failed"; }

 private:
  int step_;
  std::exception_ptr cause_;
};

class Executor {
 public:
  explicit Executor(std::shared_ptr<const Plan> plan);
  ~Executor();

  /// Run the plan once. One caller at a time. Throws StepError for the first step that failed and
  /// whatever `poll` throws; in both cases no thread works for the run any more.
  RunRecord Run(Backend& backend, const Bindings& bindings, const std::function<void()>& poll);

 private:
  struct ActiveRun;

  void EnsureThreads();
  void RunQueue(ActiveRun& run, int queue);
  Interval Execute(ActiveRun& run, int step, const Timing& timing) const;
  /// False when the run was stopped meanwhile.
  bool Await(const ActiveRun& run, int step) const;
  RunRecord Record(const ActiveRun& run) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<std::vector<int>> queue_steps_;
  // The number of the last run that finished the step: the event that other queues wait for.
  std::vector<std::atomic<std::uint32_t>> finished_;
  std::uint32_t number_ = 0;
  int spins_;
  std::unique_ptr<QueueThreads> threads_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_EXECUTOR_H_
