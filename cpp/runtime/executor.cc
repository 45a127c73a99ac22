#include "runtime/executor.h"

#include <algorithm>
#include <cmath>
#include <thread>

namespace tvm_sched::runtime {

namespace {

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

Nanoseconds Unscale(Nanoseconds time, double scale) {
  return Nanoseconds(std::llround(static_cast<double>(time.count()) / scale));
}

}  // namespace

/// The state of one run.
struct Executor::ActiveRun {
  Backend& backend;
  const Bindings& bindings;
  std::uint32_t number;
  RunContext context;
  std::vector<Interval> intervals;
  std::vector<Nanoseconds> ready;
  std::mutex mutex;
  int failed_step = -1;
  std::exception_ptr failure;

  void Fail(int step, std::exception_ptr cause) {
    {
      std::lock_guard lock(mutex);
      if (!failure) {
        failed_step = step;
        failure = std::move(cause);
      }
    }
    context.stopped.store(true);
  }
};

Executor::Executor(std::shared_ptr<const Plan> plan)
    : plan_(std::move(plan)), queue_steps_(plan_->StepsOfQueues()), finished_(plan_->steps.size()) {
  // Spinning pays only while every queue has a core to itself; otherwise it takes the core from
  // the thread that is waited for.
  const bool cores_to_spare = std::thread::hardware_concurrency() > plan_->queues.size();
  spins_ = cores_to_spare ? 2000 : 0;
}

Executor::~Executor() {
  // In a forked child the threads are not there to be joined.
  if (threads_ && !threads_->Alive()) static_cast<void>(threads_.release());
}

void Executor::EnsureThreads() {
  if (threads_ && !threads_->Alive()) static_cast<void>(threads_.release());
  if (!threads_) threads_ = std::make_unique<QueueThreads>(static_cast<int>(plan_->queues.size()));
}

RunRecord Executor::Run(Backend& backend, const Bindings& bindings,
                        const std::function<void()>& poll) {
  EnsureThreads();
  ActiveRun run{backend, bindings, ++number_, {}, {}, {}, {}, -1, nullptr};
  run.intervals.resize(plan_->steps.size());
  run.ready.resize(plan_->steps.size());
  run.context.began = Clock::now();
  threads_->Run([&](int queue) { RunQueue(run, queue); }, poll,
                [&] { run.context.stopped.store(true); });
  if (run.failure) throw StepError(run.failed_step, run.failure);
  return Record(run);
}

void Executor::RunQueue(ActiveRun& run, int queue) {
  Nanoseconds queue_free{0};
  bool entered = false;
  for (int step : queue_steps_[queue]) {
    try {
      if (!entered) run.backend.EnterQueue();
      entered = true;
      Timing timing{queue_free, plan_->steps[step].duration};
      bool goes_on = true;
      for (int wait : plan_->steps[step].waits) {
        goes_on = goes_on && Await(run, wait);
        if (goes_on) timing.ready = std::max(timing.ready, run.intervals[wait].end);
      }
      if (goes_on && !run.context.stopped.load(std::memory_order_relaxed)) {
        run.ready[step] = timing.ready;
        run.intervals[step] = Execute(run, step, timing);
        queue_free = run.intervals[step].end;
      }
    } catch (...) {
      run.Fail(step, std::current_exception());
    }
    // A stopped run still marks its steps, so that no thread waits for one that will not come.
    finished_[step].store(run.number, std::memory_order_release);
    finished_[step].notify_all();
  }
}

bool Executor::Await(const ActiveRun& run, int step) const {
  const std::atomic<std::uint32_t>& finished = finished_[step];
  for (int spin = 0; spin < spins_; ++spin) {
    if (finished.load(std::memory_order_acquire) == run.number) break;
    Pause();
  }
  std::uint32_t seen;
  while ((seen = finished.load(std::memory_order_acquire)) != run.number) {
    finished.wait(seen, std::memory_order_acquire);
  }
  return !run.context.stopped.load();
}

Interval Executor::Execute(ActiveRun& run, int index, const Timing& timing) const {
  static const Kernel kNoKernel;
  const Step& step = plan_->steps[index];
  const Bindings& bindings = run.bindings;
  switch (step.kind) {
    case StepKind::kKernel: {
      const Kernel& kernel = bindings.kernels.empty() ? kNoKernel : bindings.kernels[index];
      return run.backend.Launch(kernel, timing, run.context);
    }
    case StepKind::kCopy: {
      const bool values = !bindings.buffers.empty();
      return run.backend.Copy(values ? bindings.buffers[step.outputs[0]] : nullptr,
                              values ? bindings.buffers[step.inputs[0]] : nullptr,
                              plan_->buffers[step.outputs[0]].spec.size(), timing, run.context);
    }
    case StepKind::kHostRead:
      break;
  }
  return run.backend.Occupy(timing, run.context);
}

RunRecord Executor::Record(const ActiveRun& run) const {
  const double scale = run.backend.TimeScale();
  RunRecord record;
  record.steps.reserve(run.intervals.size());
  for (std::size_t step = 0; step < run.intervals.size(); ++step) {
    const Interval& interval = run.intervals[step];
    record.steps.push_back({Unscale(interval.start, scale), Unscale(interval.end, scale)});
    record.latency = std::max(record.latency, record.steps.back().end);
    record.largest_delay =
        std::max(record.largest_delay, Unscale(interval.start - run.ready[step], scale));
  }
  return record;
}

}  // namespace tvm_sched::runtime
