// Runs a plan: each queue's steps in their order on that queue's thread, each step after the
// steps it waits for.
#ifndef TVM_SCHED_RUNTIME_EXECUTOR_H_
#define TVM_SCHED_RUNTIME_EXECUTOR_H_

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
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
  std::vector<Interval> steps;  // empty where the run was not timed
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

/// Nothing has ended for as long as the run's watchdog allows.
class StalledError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How one run differs from another.
struct RunSettings {
  /// Called every few milliseconds; what it throws ends the run.
  std::function<void()> poll;
  /// By step, or empty: steps that need not be done, since what they bring is there already. They
  /// take no time, and nobody waits for them.
  std::vector<bool> skipped;
  /// Whether the times of each step are wanted; otherwise only the run's latency is measured.
  bool timed = true;
  /// Give the run up when no step has ended for this long; 0: never.
  Nanoseconds watchdog{0};
  /// Told what waits for what when the watchdog strikes: at once, since a kernel that hangs can't
  /// be stopped, so that the run may never return.
  std::function<void(const std::string&)> report;
};

class Executor {
 public:
  explicit Executor(std::shared_ptr<const Plan> plan);
  ~Executor();

  /// Run the plan once. One caller at a time. Throws StepError for the first step that failed,
  /// StalledError when the watchdog struck, and whatever `poll` throws; in all cases no thread
  /// works for the run any more.
  RunRecord Run(Backend& backend, const Bindings& bindings, const RunSettings& settings);
  RunRecord Run(Backend& backend, const Bindings& bindings, std::function<void()> poll) {
    RunSettings settings;
    settings.poll = std::move(poll);
    return Run(backend, bindings, settings);
  }

 private:
  struct ActiveRun;
  class Watchdog;

  /// A step of another queue that must have ended.
  struct Wait {
    int step;
    int queue;
    std::uint32_t position;  // in its queue
  };
  /// What a queue's thread needs of a step, close together: a plan's steps are large.
  struct Item {
    int step;
    StepKind kind;
    bool awaited;  // by a step of another queue
    Nanoseconds duration;
    std::vector<Wait> waits;
  };
  /// How many steps of a queue have ended, on a cache line of its own: it is the event that other
  /// queues wait for. It is brought up to date where somebody waits, and at the queue's end.
  struct alignas(128) Progress {
    std::atomic<std::uint32_t> ended{0};
    std::atomic<std::uint32_t> sleepers{0};
  };
  /// The place that a queue's thread has reached, for the watchdog alone.
  struct alignas(128) Place {
    std::atomic<std::uint32_t> position{0};
  };

  void EnsureThreads();
  void RunQueue(ActiveRun& run, int queue);
  void RunItem(ActiveRun& run, const Item& item, Nanoseconds* queue_free);
  Interval Execute(ActiveRun& run, const Item& item, const Timing& timing) const;
  void Await(const Wait& wait);
  void Announce(int queue, std::uint32_t ended);
  RunRecord Record(const ActiveRun& run) const;
  std::string DescribeQueue(int queue, const std::vector<bool>& skipped) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<std::vector<Item>> items_;  // of each queue, in its order
  std::vector<int> busy_queues_;          // those with steps: each has a thread
  std::unique_ptr<Progress[]> progress_;  // of each queue
  std::unique_ptr<Place[]> places_;       // of each queue
  // Of each step of a timed run; kept, so that a run allocates nothing.
  std::vector<Interval> intervals_;
  std::vector<Nanoseconds> ready_;
  std::vector<Nanoseconds> queue_end_;
  int spins_;
  std::unique_ptr<QueueThreads> threads_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_EXECUTOR_H_
