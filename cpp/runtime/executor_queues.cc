// How the executor's threads take queues and execute their steps.
#include <algorithm>

#include "runtime/executor_run.h"

// How threads share the queues: a thread takes a queue and runs its steps until the next one has
// to wait; then it leaves the queue to anybody and takes another whose next step is ready. So a
// chain that crosses devices at every step stays on one thread, whose caches hold the data, and
// nobody has to be woken. A sleeper is called only when there is more than one queue to go on with.
//
// No step is forgotten: who announces a step looks at its followers afterwards, and who leaves a
// queue or falls asleep looks again afterwards. These accesses are sequentially consistent, so at
// least one of two that meet sees the other.
namespace tvm_sched::runtime {
namespace {

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Executor::Reset() {
  for (int queue : busy_queues_) {
    queues_[queue].taken.store(false);
    queues_[queue].ended.store(0);
    queues_[queue].next.store(0);
    queues_[queue].free_at = Nanoseconds{0};
  }
  unfinished_.store(static_cast<int>(busy_queues_.size()));
}

void Executor::Work(ActiveRun& run, int home) {
  try {
    run.backend.EnterQueue();
  } catch (...) {
    run.Fail(items_[home].front().step, std::current_exception());
  }
  if (IsReady(run, home) && Take(home)) Drain(run, home);
  while (unfinished_.load() > 0) {
    bool more = false;
    const int queue = FindReady(run, home, &more);
    if (more) WakeOne();
    if (queue < 0) {
      Idle(run);
    } else if (Take(queue)) {
      Drain(run, queue);
    }
  }
}

void Executor::WorkOnCaller(ActiveRun& run, int others) {
  run.poll_at = Clock::now() + ActiveRun::kPollEvery;
  const QueueThreads::Job job = [&](int thread) { Work(run, busy_queues_[thread + 1]); };
  if (others > 0) threads_->Begin(others, job);
  if (!busy_queues_.empty()) Work(run, busy_queues_.front());
  if (others > 0) threads_->Finish();
  if (run.interrupt) std::rethrow_exception(run.interrupt);
}

bool Executor::Take(int queue) { return !queues_[queue].taken.exchange(true); }

void Executor::Drain(ActiveRun& run, int index) {
  Queue& queue = queues_[index];
  const std::vector<Item>& items = items_[index];
  do {
    const Item* announced = nullptr;
    std::uint32_t next = queue.next.load(std::memory_order_relaxed);
    while (next < items.size() && IsReady(run, index)) {
      if (announced != nullptr && idle_.load() > 0) {
        for (int follower : announced->followers) {
          if (queues_[follower].taken.load() || !IsReady(run, follower)) continue;
          WakeOne();
          break;
        }
      }
      RunItem(run, queue, items[next]);
      queue.next.store(++next, std::memory_order_release);
      announced = items[next - 1].followers.empty() ? nullptr : &items[next - 1];
      if (announced != nullptr) queue.ended.store(next);
    }
    if (next == items.size()) {
      queue_end_[index] = run.context.timed ? queue.free_at : run.context.Now();
      if (unfinished_.fetch_sub(1) == 1) WakeAll();
      return;  // and nobody else takes the queue in this run
    }
    queue.taken.store(false);
  } while (IsReady(run, index) && Take(index));
}

void Executor::RunItem(ActiveRun& run, Queue& queue, const Item& item) {
  if (run.Skips(item.step)) {
    intervals_[item.step] = {};
    ready_[item.step] = {};
    return;
  }
  // A stopped run still announces its steps, so that no thread waits for one that won't come.
  if (run.context.stopped.load(std::memory_order_acquire)) return;
  if (run.OnCaller()) run.PollIfDue();
  Timing timing{queue.free_at, item.duration, item.step};
  if (run.context.timed && !run.streams) {
    for (const Wait& wait : item.waits) {
      if (run.Skips(wait.step)) continue;
      timing.ready = std::max(timing.ready, intervals_[wait.step].end);
    }
  }
  try {
    const Interval interval = Issue(run, item, timing);
    if (!run.context.timed || run.streams) return;
    ready_[item.step] = timing.ready;
    intervals_[item.step] = interval;
    queue.free_at = interval.end;
  } catch (...) {
    run.Fail(item.step, std::current_exception());
  }
}

/// Do a step, or put it on its stream, after those that it waits for.
Interval Executor::Issue(ActiveRun& run, const Item& item, const Timing& timing) const {
  if (!run.streams) return Execute(run, item, timing);
  for (const Wait& wait : item.waits) {
    if (!run.Skips(wait.step)) run.streams->Wait(item.step, wait.step);
  }
  const Interval interval = Execute(run, item, timing);
  const bool watched = run.context.timed || run.settings.watchdog.count() > 0;
  if (watched || !item.followers.empty()) run.streams->Record(item.step);
  return interval;
}

/// Whether the queue's next step waits for nothing. Who has not taken the queue gets a hint.
bool Executor::IsReady(const ActiveRun& run, int queue) const {
  const std::uint32_t next = queues_[queue].next.load();
  if (next >= items_[queue].size()) return false;
  const Item& item = items_[queue][next];
  if (run.Skips(item.step)) return true;
  for (const Wait& wait : item.waits) {
    if (queues_[wait.queue].ended.load() <= wait.position && !run.Skips(wait.step)) return false;
  }
  return true;
}

/// A queue that is free and ready, or -1; `more`: whether there is another one.
int Executor::FindReady(const ActiveRun& run, int from, bool* more) const {
  int found = -1;
  const auto start = std::lower_bound(busy_queues_.begin(), busy_queues_.end(), from);
  const auto offset = static_cast<std::size_t>(start - busy_queues_.begin());
  for (std::size_t k = 0; k < busy_queues_.size(); ++k) {
    const int queue = busy_queues_[(offset + k) % busy_queues_.size()];
    if (queues_[queue].taken.load() || !IsReady(run, queue)) continue;
    if (found >= 0) {
      *more = true;
      return found;
    }
    found = queue;
  }
  return found;
}

void Executor::WakeOne() {
  const int idle = idle_.load();
  if (idle == 0) return;
  calls_.fetch_add(1);
  // One that still spins sees the change by itself.
  if (sleepers_.load() >= idle) calls_.notify_one();
  WakeCaller();
}

void Executor::WakeCaller() {
  if (!caller_sleeps_.load()) return;
  {
    std::lock_guard lock(caller_mutex_);
  }  // it waits, or has not yet looked at calls_
  caller_called_.notify_one();
}

void Executor::WakeAll() {
  calls_.fetch_add(1);
  calls_.notify_all();
  WakeCaller();
}

void Executor::Idle(ActiveRun& run) {
  idle_.fetch_add(1);
  const std::uint32_t seen = calls_.load();
  bool more = false;
  if (unfinished_.load() > 0 && FindReady(run, busy_queues_.front(), &more) < 0) {
    for (int spin = 0; spin < spins_ && calls_.load() == seen; ++spin) Pause();
    sleepers_.fetch_add(1);
    if (run.OnCaller()) {
      AwaitCall(run, seen);
    } else {
      calls_.wait(seen);
    }
    sleepers_.fetch_sub(1);
  }
  idle_.fetch_sub(1);
}

/// The caller's sleep, in which it polls.
void Executor::AwaitCall(ActiveRun& run, std::uint32_t seen) {
  std::unique_lock lock(caller_mutex_);
  caller_sleeps_.store(true);
  while (calls_.load() == seen) {
    if (caller_called_.wait_for(lock, ActiveRun::kPollEvery) == std::cv_status::timeout) {
      lock.unlock();
      run.PollIfDue();
      lock.lock();
    }
  }
  caller_sleeps_.store(false);
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

}  // namespace tvm_sched::runtime
