// The state of one run of the executor: for the files that implement it.
#ifndef TVM_SCHED_RUNTIME_EXECUTOR_RUN_H_
#define TVM_SCHED_RUNTIME_EXECUTOR_RUN_H_

#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/executor.h"

namespace tvm_sched::runtime {

/// The state of one run.
struct Executor::ActiveRun {
  static constexpr Nanoseconds kPollEvery{20'000'000};

  ActiveRun(Backend& on, const Bindings& with, const RunSettings& as)
      : backend(on), bindings(with), settings(as), streams(on.streams()) {
    context.timed = as.timed;
  }

  Backend& backend;
  const Bindings& bindings;
  const RunSettings& settings;
  Streams* streams;
  const std::thread::id caller = std::this_thread::get_id();
  bool replayed = false;  // all steps at once, from a captured graph
  RunContext context;
  std::mutex mutex;
  int failed_step = -1;
  std::exception_ptr failure;
  bool failed_on_caller = false;

  /// Where the caller works itself: when it polls next, and what that threw.
  std::optional<Clock::time_point> poll_at;
  std::exception_ptr interrupt;

  void PollIfDue() {
    if (interrupt || !poll_at || !settings.poll || Clock::now() < *poll_at) return;
    poll_at = Clock::now() + kPollEvery;
    try {
      settings.poll();
    } catch (...) {
      interrupt = std::current_exception();
      context.stopped.store(true);
    }
  }

  bool OnCaller() const { return std::this_thread::get_id() == caller && poll_at.has_value(); }

  bool Skips(int step) const { return !settings.skipped.empty() && settings.skipped[step]; }

  void Fail(int step, std::exception_ptr cause) {
    {
      std::lock_guard lock(mutex);
      if (!failure) {
        failed_step = step;
        failed_on_caller = std::this_thread::get_id() == caller;
        failure = std::move(cause);
      }
    }
    context.stopped.store(true);
  }
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_EXECUTOR_RUN_H_
