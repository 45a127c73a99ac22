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
  const RunSettings& settings;
  RunContext context;
  std::mutex mutex;
  int failed_step = -1;
  std::exception_ptr failure;

  bool Skips(int step) const { return !settings.skipped.empty() && settings.skipped[step]; }

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

/// Looks now and then whether anything has ended since it last looked.
class Executor::Watchdog {
 public:
  Watchdog(const Executor& executor, const ActiveRun& run)
      : executor_(executor), run_(run), since_(Clock::now()) {}

  void Check() {
    const Nanoseconds limit = run_.settings.watchdog;
    if (limit.count() == 0) return;
    std::uint64_t ended = 0;
    for (int queue : executor_.busy_queues_) ended += executor_.places_[queue].position.load();
    const Clock::time_point now = Clock::now();
    if (ended != ended_) {
      ended_ = ended;
      since_ = now;
    }
    if (now - since_ < limit) return;
    std::string text = "no step has ended for " +
                       std::to_string(std::chrono::duration<double>(now - since_).count()) + " s:";
    for (int queue : executor_.busy_queues_) {
      text += executor_.DescribeQueue(queue, run_.settings.skipped);
    }
    if (run_.settings.report) run_.settings.report(text);
    throw StalledError(text);
  }

 private:
  const Executor& executor_;
  const ActiveRun& run_;
  Clock::time_point since_;
  std::uint64_t ended_ = 0;
};

Executor::Executor(std::shared_ptr<const Plan> plan)
    : plan_(std::move(plan)),
      items_(plan_->queues.size()),
      progress_(std::make_unique<Progress[]>(plan_->queues.size())),
      places_(std::make_unique<Place[]>(plan_->queues.size())),
      intervals_(plan_->steps.size()),
      ready_(plan_->steps.size()),
      queue_end_(plan_->queues.size()) {
  std::vector<std::uint32_t> position(plan_->steps.size());
  for (std::size_t index = 0; index < plan_->steps.size(); ++index) {
    const Step& step = plan_->steps[index];
    Item item{static_cast<int>(index), step.kind, false, step.duration, {}};
    for (int wait : step.waits) {
      const int queue = plan_->steps[wait].queue;
      if (queue == step.queue) continue;  // the queue's order says so already
      item.waits.push_back({wait, queue, position[wait]});
      items_[queue][position[wait]].awaited = true;
    }
    position[index] = static_cast<std::uint32_t>(items_[step.queue].size());
    items_[step.queue].push_back(std::move(item));
  }
  for (std::size_t queue = 0; queue < items_.size(); ++queue) {
    if (!items_[queue].empty()) busy_queues_.push_back(static_cast<int>(queue));
  }
  // Spinning pays only while every queue has a core to itself; otherwise it takes the core from
  // the thread that is waited for.
  const bool enough_cores = std::thread::hardware_concurrency() >= busy_queues_.size();
  spins_ = enough_cores ? 2000 : 0;
}

Executor::~Executor() {
  // In a forked child the threads are not there to be joined.
  if (threads_ && !threads_->Alive()) static_cast<void>(threads_.release());
}

void Executor::EnsureThreads() {
  if (threads_ && !threads_->Alive()) static_cast<void>(threads_.release());
  if (!threads_) threads_ = std::make_unique<QueueThreads>(static_cast<int>(busy_queues_.size()));
}

RunRecord Executor::Run(Backend& backend, const Bindings& bindings, const RunSettings& settings) {
  EnsureThreads();
  ActiveRun run{backend, bindings, settings, {}, {}, -1, nullptr};
  for (int queue : busy_queues_) {
    progress_[queue].ended.store(0, std::memory_order_relaxed);
    places_[queue].position.store(0, std::memory_order_relaxed);
  }
  run.context.timed = settings.timed;
  run.context.began = Clock::now();
  Watchdog watchdog(*this, run);
  std::function<void()> poll;
  if (settings.poll || settings.watchdog.count() > 0) {
    poll = [&] {
      if (settings.poll) settings.poll();
      watchdog.Check();
    };
  }
  threads_->Run([&](int thread) { RunQueue(run, busy_queues_[thread]); }, poll,
                [&] { run.context.stopped.store(true); });
  if (run.failure) throw StepError(run.failed_step, run.failure);
  return Record(run);
}

void Executor::RunQueue(ActiveRun& run, int queue) {
  Nanoseconds queue_free{0};
  std::uint32_t ended = 0;
  bool entered = false;
  for (const Item& item : items_[queue]) {
    try {
      if (!entered) run.backend.EnterQueue();
      entered = true;
      RunItem(run, item, &queue_free);
    } catch (...) {
      run.Fail(item.step, std::current_exception());
    }
    // A stopped run still announces its steps, so that no thread waits for one that won't come.
    places_[queue].position.store(++ended, std::memory_order_relaxed);
    if (item.awaited) Announce(queue, ended);
  }
  queue_end_[queue] = run.context.timed ? queue_free : run.context.Now();
}

void Executor::RunItem(ActiveRun& run, const Item& item, Nanoseconds* queue_free) {
  if (run.Skips(item.step)) {
    intervals_[item.step] = {};
    ready_[item.step] = {};
    return;
  }
  Timing timing{*queue_free, item.duration};
  for (const Wait& wait : item.waits) {
    if (run.Skips(wait.step)) continue;
    Await(wait);
    if (run.context.timed) timing.ready = std::max(timing.ready, intervals_[wait.step].end);
  }
  // Acquire: who stopped the run may have left buffers half written, and nobody may read them.
  if (run.context.stopped.load(std::memory_order_acquire)) return;
  const Interval interval = Execute(run, item, timing);
  if (!run.context.timed) return;
  ready_[item.step] = timing.ready;
  intervals_[item.step] = interval;
  *queue_free = interval.end;
}

void Executor::Await(const Wait& wait) {
  Progress& progress = progress_[wait.queue];
  for (int spin = 0; spin < spins_; ++spin) {
    if (progress.ended.load(std::memory_order_acquire) > wait.position) return;
    Pause();
  }
  // Sequentially consistent on both sides: either the announcer sees a sleeper, or the sleeper
  // sees the announcement.
  progress.sleepers.fetch_add(1);
  std::uint32_t seen;
  while ((seen = progress.ended.load()) <= wait.position) progress.ended.wait(seen);
  progress.sleepers.fetch_sub(1);
}

void Executor::Announce(int queue, std::uint32_t ended) {
  progress_[queue].ended.store(ended);
  if (progress_[queue].sleepers.load() > 0) progress_[queue].ended.notify_all();
}

Interval Executor::Execute(ActiveRun& run, const Item& item, const Timing& timing) const {
  static const Kernel kNoKernel;
  const Bindings& bindings = run.bindings;
  switch (item.kind) {
    case StepKind::kKernel: {
      const Kernel& kernel = bindings.kernels.empty() ? kNoKernel : bindings.kernels[item.step];
      return run.backend.Launch(kernel, timing, run.context);
    }
    case StepKind::kCopy: {
      const Step& step = plan_->steps[item.step];
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
  for (int queue : busy_queues_) {
    record.latency = std::max(record.latency, Unscale(queue_end_[queue], scale));
  }
  if (!run.context.timed) return record;
  record.steps.reserve(intervals_.size());
  for (std::size_t step = 0; step < intervals_.size(); ++step) {
    const Interval& interval = intervals_[step];
    record.steps.push_back({Unscale(interval.start, scale), Unscale(interval.end, scale)});
    record.largest_delay =
        std::max(record.largest_delay, Unscale(interval.start - ready_[step], scale));
  }
  return record;
}

std::string Executor::DescribeQueue(int queue, const std::vector<bool>& skipped) const {
  const std::uint32_t position = places_[queue].position.load();
  if (position >= items_[queue].size()) return "";
  const Item& item = items_[queue][position];
  std::string text = "\n  " + plan_->DescribeStep(item.step);
  std::string waits;
  for (const Wait& wait : item.waits) {
    if (!skipped.empty() && skipped[wait.step]) continue;
    if (progress_[wait.queue].ended.load() > wait.position) continue;
    waits += (waits.empty() ? " waits for " : ", ") + plan_->DescribeStep(wait.step);
  }
  return text + (waits.empty() ? " is running" : waits);
}

}  // namespace tvm_sched::runtime
