// Runs a plan: each queue's steps in their order, one at a time, each step after the steps it
// waits for. There are as many threads as queues, or as many as the backend has work for; on CPUs
// the caller is one of them.
#ifndef TVM_SCHED_RUNTIME_EXECUTOR_H_
#define TVM_SCHED_RUNTIME_EXECUTOR_H_

#include <atomic>
#include <condition_variable>
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
  /// From the start of the run until the caller knew that all steps had ended.
  Nanoseconds wall{0};
  /// The longest that a step began after its predecessors had ended and its queue was free: the
  /// cost of waking threads, and how far an emulated run is from ideal devices.
  Nanoseconds largest_delay{0};
};

/// A step that failed, and why.
class StepError : public std::exception {
 public:
  StepError(int step, std::exception_ptr cause, bool on_this_thread = false)
      : step_(step), cause_(std::move(cause)), on_this_thread_(on_this_thread) {}
  int step() const { return step_; }
  const std::exception_ptr& cause() const { return cause_; }
  /// Whether it failed on the thread of the run's caller.
  bool on_this_thread() const { return on_this_thread_; }
  const char* what() const noexcept override { return "a step of the plan failed"; }

 private:
  int step_;
  std::exception_ptr cause_;
  bool on_this_thread_;
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
  /// Called when the watchdog strikes, with a text that says which step waits for which. It is
  /// called at once, since a kernel that hangs cannot be stopped and the run may never return.
  std::function<void(const std::string&)> report;
};

class Executor {
 public:
  explicit Executor(std::shared_ptr<const Plan> plan);
  ~Executor();

  /// Run another plan from now on, which differs in sizes only: an instance of the same template.
  void Use(std::shared_ptr<const Plan> plan) { plan_ = std::move(plan); }

  /// Run the plan once, on the caller's thread where one is enough. One caller at a time. Throws
  /// StepError for the first step that failed, StalledError when the watchdog struck, and whatever
  /// `poll` throws; in all cases no thread works for the run any more.
  RunRecord Run(Backend& backend, const Bindings& bindings, const RunSettings& settings);
  RunRecord Run(Backend& backend, const Bindings& bindings, std::function<void()> poll) {
    RunSettings settings;
    settings.poll = std::move(poll);
    return Run(backend, bindings, settings);
  }

  /// Note all steps but the skipped ones, for a backend with streams, and return what does them
  /// anew: a run with the same bindings and backend, issued at once. Throws StepError.
  std::function<void()> Capture(Backend& backend, const Bindings& bindings,
                                const std::vector<bool>& skipped);
  /// A run of what Capture returned. Times of steps are not measured.
  RunRecord Replay(Backend& backend, const std::function<void()>& captured,
                   const RunSettings& settings);

 private:
  struct ActiveRun;
  class Watchdog;

  /// A step of another queue that must have ended.
  struct Wait {
    int step;
    int queue;
    std::uint32_t position;  // in its queue
  };
  /// What a worker needs of a step, close together: a plan's steps are large.
  struct Item {
    int step;
    StepKind kind;
    Nanoseconds duration;
    std::vector<Wait> waits;
    std::vector<int> followers;  // queues with a step that waits for this one
  };
  /// The state of a queue in a run, on cache lines of its own. Who has taken the queue runs its
  /// steps, whichever thread that is.
  struct alignas(128) Queue {
    std::atomic<bool> taken{false};
    /// How many of its steps have ended, as other queues see it.
    std::atomic<std::uint32_t> ended{0};
    /// Its next step, and when its last one ended: written by who has taken it.
    std::atomic<std::uint32_t> next{0};
    Nanoseconds free_at{0};
  };

  /// How many threads work for a run on a backend.
  int CountWorkers(const Backend& backend) const;
  void EnsureThreads(int count, int workers);
  void Reset();
  // The work of one thread in a run; executor.cc says how threads share the queues.
  void Work(ActiveRun& run, int home);
  void WorkOnCaller(ActiveRun& run, int others);
  bool Take(int queue);
  void Drain(ActiveRun& run, int queue);
  void RunItem(ActiveRun& run, Queue& queue, const Item& item);
  Interval Issue(ActiveRun& run, const Item& item, const Timing& timing) const;
  std::vector<int> CaptureOrder() const;
  static void Begin(ActiveRun& run);
  static void GiveUp(ActiveRun& run) noexcept;
  void Conclude(ActiveRun& run, Watchdog& watchdog);
  void AwaitStreams(ActiveRun& run, Watchdog& watchdog);
  void ReadTimes(const ActiveRun& run);
  Interval Execute(ActiveRun& run, const Item& item, const Timing& timing) const;
  bool IsReady(const ActiveRun& run, int queue) const;
  int FindReady(const ActiveRun& run, int from, bool* more) const;
  void WakeOne();
  void WakeAll();
  void WakeCaller();
  void Idle(ActiveRun& run);
  void AwaitCall(ActiveRun& run, std::uint32_t seen);

  RunRecord Record(const ActiveRun& run) const;
  std::uint32_t EndedOf(int queue, const ActiveRun& run) const;
  std::uint64_t CountEnded(const ActiveRun& run) const;
  std::string DescribeQueue(int queue, const ActiveRun& run) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<std::vector<Item>> items_;  // of each queue, in its order
  std::vector<int> busy_queues_;          // those with steps
  std::unique_ptr<Queue[]> queues_;
  alignas(128) std::atomic<int> unfinished_{0};       // queues with steps left
  alignas(128) std::atomic<int> idle_{0};             // threads that found nothing to do
  std::atomic<int> sleepers_{0};                      // those of them that no longer spin
  alignas(128) std::atomic<std::uint32_t> calls_{0};  // changes when somebody idle shall look
  std::atomic<bool> caller_sleeps_{false};
  std::mutex caller_mutex_;  // with the condition, for the caller's sleep, which has a limit
  std::condition_variable caller_called_;
  // Of each step of a timed run; kept, so that a run allocates nothing.
  std::vector<Interval> intervals_;
  std::vector<Nanoseconds> ready_;
  std::vector<Nanoseconds> queue_end_;
  int spins_ = 0;
  std::unique_ptr<QueueThreads> threads_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_EXECUTOR_H_
