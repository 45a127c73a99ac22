#include "runtime/executor.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>
#include <queue>
#include <thread>
#include <utility>

namespace tvm_sched::runtime {

namespace {

Nanoseconds Unscale(Nanoseconds time, double scale) {
  return Nanoseconds(std::llround(static_cast<double>(time.count()) / scale));
}

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

/// The state of one run.
struct Executor::ActiveRun {
  static constexpr Nanoseconds kPollEvery{20'000'000};

  ActiveRun(Backend& on, const Bindings& with, const RunSettings& as)
      : backend(on), bindings(with), settings(as), streams(on.streams()) {
    context.timed = as.timed;
    context.skipped = as.skipped;
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

/// Looks now and then whether anything has ended since it last looked.
class Executor::Watchdog {
 public:
  Watchdog(const Executor& executor, const ActiveRun& run)
      : executor_(executor), run_(run), since_(Clock::now()) {}

  void Check() {
    const Nanoseconds limit = run_.settings.watchdog;
    if (limit.count() == 0) return;
    const std::uint64_t ended = executor_.CountEnded(run_);
    const Clock::time_point now = Clock::now();
    if (ended != ended_) {
      ended_ = ended;
      since_ = now;
    }
    if (now - since_ < limit) return;
    std::string text = "no step has ended for " +
                       std::to_string(std::chrono::duration<double>(now - since_).count()) + " s:";
    if (run_.replayed) text += " the captured graph of the whole plan runs";
    for (int queue : executor_.busy_queues_) {
      if (!run_.replayed) text += executor_.DescribeQueue(queue, run_);
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
      queues_(std::make_unique<Queue[]>(plan_->queues.size())),
      intervals_(plan_->steps.size()),
      ready_(plan_->steps.size()),
      queue_end_(plan_->queues.size()) {
  std::vector<std::uint32_t> position(plan_->steps.size());
  for (std::size_t index = 0; index < plan_->steps.size(); ++index) {
    const Step& step = plan_->steps[index];
    Item item{static_cast<int>(index), step.kind, step.duration, {}, {}};
    for (int wait : step.waits) {
      const int queue = plan_->steps[wait].queue;
      if (queue == step.queue) continue;  // the queue's order says so already
      item.waits.push_back({wait, queue, position[wait]});
      std::vector<int>& followers = items_[queue][position[wait]].followers;
      if (followers.empty() || followers.back() != step.queue) followers.push_back(step.queue);
    }
    position[index] = static_cast<std::uint32_t>(items_[step.queue].size());
    items_[step.queue].push_back(std::move(item));
  }
  for (std::size_t queue = 0; queue < items_.size(); ++queue) {
    if (!items_[queue].empty()) busy_queues_.push_back(static_cast<int>(queue));
  }
}

Executor::~Executor() {
  // In a forked child the threads are not there to be joined.
  if (threads_ && !threads_->Alive()) static_cast<void>(threads_.release());
}

int Executor::CountWorkers(const Backend& backend) const {
  const auto queues = static_cast<int>(busy_queues_.size());
  if (backend.Workers() == 0) return queues;
  // One for each device, if there are fewer cores: who asked for devices wants them at once.
  return std::min(queues, std::max(backend.Workers(), static_cast<int>(plan_->devices.size())));
}

void Executor::EnsureThreads(int count, int workers) {
  if (threads_ && !threads_->Alive()) static_cast<void>(threads_.release());
  if (!threads_ || threads_->count() < count) {
    threads_ = nullptr;
    threads_ = std::make_unique<QueueThreads>(count);
  }
  // Spinning pays only while every thread has a core to itself; otherwise it takes the core from
  // the thread that is waited for.
  spins_ = plan_->cores >= workers ? 1000 : 0;
}

RunRecord Executor::Run(Backend& backend, const Bindings& bindings, const RunSettings& settings) {
  const int workers = CountWorkers(backend);
  ActiveRun run(backend, bindings, settings);
  // The caller is one of the workers: nobody has to be woken for its part, and it goes on alone
  // where other processes leave no core to the others. The watchdog needs a thread that is free,
  // and a backend without cores of its own may change the thread that it runs on. Streams are
  // awaited.
  const bool joins =
      backend.Workers() > 0 && settings.watchdog.count() == 0 && (workers <= 1 || !run.streams);
  const int others = joins ? workers - 1 : workers;
  if (!joins || others > 0) EnsureThreads(others, workers);
  Reset();
  if (run.streams && run.context.timed) run.streams->ReadClocks();
  run.context.began = Clock::now();
  if (run.streams) Begin(run);
  Watchdog watchdog(*this, run);
  std::function<void()> poll;
  if (settings.poll || settings.watchdog.count() > 0) {
    poll = [&] {
      if (settings.poll) settings.poll();
      watchdog.Check();
    };
  }
  const auto work = [&] {
    if (joins) return WorkOnCaller(run, others);
    const QueueThreads::Job job = [&](int thread) { Work(run, busy_queues_[thread]); };
    threads_->Begin(workers, job);
    threads_->Await(poll, [&] { run.context.stopped.store(true); });
  };
  if (run.streams) {
    // Also when the issue of steps was given up: what was issued still uses the run's memory.
    std::exception_ptr interrupt;
    try {
      work();
    } catch (...) {
      interrupt = std::current_exception();
    }
    Conclude(run, watchdog);
    if (interrupt) std::rethrow_exception(interrupt);
  } else {
    work();
  }
  if (run.failure) throw StepError(run.failed_step, run.failure, run.failed_on_caller);
  return Record(run);
}

void Executor::Begin(ActiveRun& run) {
  try {
    run.streams->Begin(run.context);
  } catch (...) {
    GiveUp(run);
    throw;
  }
}

/// All that was issued ends before the run does, which has failed: it uses the run's memory.
void Executor::GiveUp(ActiveRun& run) noexcept {
  try {
    run.streams->Issued();
  } catch (...) {
  }
  run.streams->Drain();
}

void Executor::Conclude(ActiveRun& run, Watchdog& watchdog) {
  try {
    run.streams->Issued();
    AwaitStreams(run, watchdog);
  } catch (...) {
    run.streams->Drain();
    if (!run.failure) throw;
  }
  if (run.failure) run.streams->Drain();  // also what a step left half issued
}

void Executor::AwaitStreams(ActiveRun& run, Watchdog& watchdog) {
  // Asking again and again is the fastest way to know. To wake a sleeper takes up to 0.1 ms (on an
  // H100's host), a twentieth at most of what is waited for so.
  constexpr Nanoseconds kSpin{2'000'000};
  std::exception_ptr interrupt;
  const Nanoseconds issued = run.context.Now();
  Nanoseconds polled = issued;
  try {
    while (!run.streams->Finished()) {
      const Nanoseconds now = run.context.Now();
      if (now - issued > kSpin) run.streams->Sleep(ActiveRun::kPollEvery);
      if (interrupt || now - polled < ActiveRun::kPollEvery) continue;
      polled = now;
      try {
        if (run.settings.poll) run.settings.poll();
        watchdog.Check();
      } catch (...) {
        // A device cannot be stopped: the run ends when what was issued has.
        interrupt = std::current_exception();
      }
    }
  } catch (...) {
    if (!run.failure) throw;
  }
  if (interrupt) std::rethrow_exception(interrupt);
  const Nanoseconds now = run.context.Now();
  for (int queue : busy_queues_) queue_end_[queue] = now;
  if (run.context.timed && !run.failure) ReadTimes(run);
}

void Executor::ReadTimes(const ActiveRun& run) {
  std::fill(queue_end_.begin(), queue_end_.end(), Nanoseconds{0});
  for (std::size_t index = 0; index < plan_->steps.size(); ++index) {
    const int step = static_cast<int>(index);
    ready_[index] = {};
    intervals_[index] = {};
    if (run.Skips(step)) continue;
    intervals_[index] = run.streams->TimesOf(step);
    Nanoseconds& free_at = queue_end_[plan_->steps[index].queue];
    ready_[index] = free_at;
    for (int wait : plan_->steps[index].waits) {
      ready_[index] = std::max(ready_[index], intervals_[wait].end);
    }
    free_at = intervals_[index].end;
  }
}

// ---- the threads of a run
//
// How threads share the queues: a thread takes a queue and runs its steps until the next one has
// to wait; then it leaves the queue to anybody and takes another whose next step is ready. So a
// chain that crosses devices at every step stays on one thread, whose caches hold the data, and
// nobody has to be woken. A sleeper is called only when there is more than one queue to go on with.
//
// No step is forgotten: who announces a step looks at its followers afterwards, and who leaves a
// queue or falls asleep looks again afterwards. These accesses are sequentially consistent, so at
// least one of two that meet sees the other.

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
    case StepKind::kKernel:
    case StepKind::kRead: {  // a kernel of sorts, which waits for the file
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

// ---- captured graphs

/// Steps in the order in which a graph's nodes are made: of those that wait for nothing that is
/// left, always the last of the plan. A graph starts of branches that are ready together the one
/// first whose nodes were made last (docs/results/concurrent_kernels.md), so that it starts them
/// in the plan's order. Queues keep theirs.
std::vector<int> Executor::CaptureOrder() const {
  const std::size_t count = plan_->steps.size();
  std::vector<int> waits(count), order;
  std::vector<std::vector<int>> after(count);
  for (const std::vector<Item>& items : items_) {
    for (std::size_t k = 0; k < items.size(); ++k) {
      if (k > 0) after[items[k - 1].step].push_back(items[k].step);
      for (const Wait& wait : items[k].waits) after[wait.step].push_back(items[k].step);
      waits[items[k].step] = static_cast<int>(items[k].waits.size()) + (k > 0);
    }
  }
  std::priority_queue<int> free;  // the last first
  for (std::size_t step = 0; step < count; ++step) {
    if (waits[step] == 0) free.push(static_cast<int>(step));
  }
  while (!free.empty()) {
    order.push_back(free.top());
    free.pop();
    for (int next : after[order.back()]) {
      if (--waits[next] == 0) free.push(next);
    }
  }
  return order;
}

std::function<void()> Executor::Capture(Backend& backend, const Bindings& bindings,
                                        const std::vector<bool>& skipped) {
  RunSettings settings;
  settings.skipped = skipped;
  settings.timed = false;
  ActiveRun run(backend, bindings, settings);
  int step = 0;
  try {
    run.streams->BeginCapture();
  } catch (...) {
    run.streams->AbandonCapture();  // it may have begun
    throw;
  }
  try {
    std::vector<std::size_t> position(items_.size());
    for (int next : CaptureOrder()) {
      step = next;
      const int queue = plan_->steps[step].queue;
      const Item& item = items_[queue][position[queue]++];
      if (!run.Skips(step)) Issue(run, item, {{}, item.duration, step});
    }
  } catch (...) {
    run.streams->AbandonCapture();
    throw StepError(step, std::current_exception());
  }
  try {
    return run.streams->EndCapture();
  } catch (...) {
    run.streams->AbandonCapture();
    throw;
  }
}

RunRecord Executor::Replay(Backend& backend, const std::function<void()>& captured,
                           const RunSettings& settings) {
  static const Bindings kNone;
  ActiveRun run(backend, kNone, settings);
  run.replayed = true;
  run.context.timed = false;
  run.context.began = Clock::now();
  Watchdog watchdog(*this, run);
  Begin(run);
  try {
    captured();
  } catch (...) {
    GiveUp(run);
    throw;
  }
  Conclude(run, watchdog);
  return Record(run);
}

// ---- what is known of a run

RunRecord Executor::Record(const ActiveRun& run) const {
  const double scale = run.backend.TimeScale();
  RunRecord record;
  record.wall = Unscale(run.context.Now(), scale);
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

/// How many steps of a queue have ended. On streams, those that were issued are asked one by one.
std::uint32_t Executor::EndedOf(int queue, const ActiveRun& run) const {
  const std::uint32_t issued = queues_[queue].next.load();
  if (!run.streams) return issued;
  std::uint32_t ended = 0;
  while (ended < issued) {
    const int step = items_[queue][ended].step;
    if (!run.Skips(step) && !run.streams->Ended(step)) break;
    ++ended;
  }
  return ended;
}

std::uint64_t Executor::CountEnded(const ActiveRun& run) const {
  std::uint64_t ended = 0;
  if (run.replayed) return ended;
  for (int queue : busy_queues_) ended += EndedOf(queue, run);
  return ended;
}

std::string Executor::DescribeQueue(int queue, const ActiveRun& run) const {
  const std::uint32_t position = EndedOf(queue, run);
  if (position >= items_[queue].size()) return "";
  const Item& item = items_[queue][position];
  std::string text = "\n  " + plan_->DescribeStep(item.step);
  std::string waits;
  for (const Wait& wait : item.waits) {
    if (run.Skips(wait.step)) continue;
    const bool ended = run.streams ? EndedOf(wait.queue, run) > wait.position
                                   : queues_[wait.queue].ended.load() > wait.position;
    if (ended) continue;
    waits += (waits.empty() ? " waits for " : ", ") + plan_->DescribeStep(wait.step);
  }
  return text + (waits.empty() ? " is running" : waits);
}

}  // namespace tvm_sched::runtime
