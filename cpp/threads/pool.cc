#include "threads/pool.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "threads/waiting.h"

#ifdef TVM_SCHED_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace tvm_sched::threads {

namespace {

/// The calling thread's arena of a size. Each thread has its own: in one that is full of other
/// callers it would have to wait for them.
tbb::task_arena& ArenaOf(int threads) {
  thread_local std::map<int, tbb::task_arena> arenas;
  return arenas.try_emplace(threads, threads).first->second;
}

/// Whether TBB's workers stayed behind in a parent process. What is left of them in a forked child
/// may be a lock that nobody releases: a worker can hold one at the moment of the fork. To make an
/// arena takes such a lock, so the thread that forks makes the child's before.
class Workers {
 public:
  Workers() {
    static const int registered =
        pthread_atfork(MakeArenaOfOne, nullptr, [] { lost_ = begun_.load(); });
    static_cast<void>(registered);
    PauseBeforeYielding();
  }

  /// The number of threads that a call for `threads` of them gets.
  int Usable(int threads) const {
    if (lost_ || threads <= 1) return 1;
    begun_ = true;
    return threads;
  }

 private:
  static void MakeArenaOfOne() {
    if (!begun_ || lost_) return;
    try {
      ArenaOf(1).execute([] {});
    } catch (...) {  // no memory: the child tries again
    }
  }

  static inline std::atomic<bool> begun_{false}, lost_{false};
};

int UsableThreads(int threads) {
  static const Workers workers;
  return workers.Usable(threads);
}

/// Says to ThreadSanitizer what TBB sees to, which is not built with it: what a thread did before
/// Release is done for one that has called Acquire after that.
struct Order {
#ifdef TVM_SCHED_THREAD_SANITIZER
  void Release() { __tsan_release(this); }
  void Acquire() { __tsan_acquire(this); }
#else
  void Release() {}
  void Acquire() {}
#endif
};

/// The first exception of a loop's calls, after which the others are left out.
class FirstException {
 public:
  void Guard(Callback<> call) {
    if (thrown_) return;
    try {
      call();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!first_) first_ = std::current_exception();
      thrown_ = true;
    }
  }

  void Rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::atomic<bool> thrown_{false};
  std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace

void Enter(int threads, Callback<> work) {
  threads = UsableThreads(threads);
  // Where the caller is in such an arena already, there is nothing to change.
  if (tbb::this_task_arena::current_thread_index() == 0 &&
      tbb::this_task_arena::max_concurrency() == threads) {
    return work();
  }
  ArenaOf(threads).execute(work);
}

void Loop(int threads, int count, Callback<int> body) {
  if (count <= 1 || UsableThreads(threads) == 1) {
    for (int k = 0; k < count; ++k) body(k);
    return;
  }
  Order begin, end;
  FirstException failure;
  const auto call = [&](int k) {
    begin.Acquire();
    failure.Guard([&] { body(k); });
    end.Release();
  };
  begin.Release();
  Enter(threads, [&] { tbb::parallel_for(0, count, call, tbb::simple_partitioner()); });
  end.Acquire();
  failure.Rethrow();
}

void LoopOnNewThreads(int threads, int count, Callback<int> body) {
  std::atomic<int> next{0};
  FirstException failure;
  const auto work = [&] {
    for (int k = next++; k < count; k = next++) failure.Guard([&] { body(k); });
  };
  std::vector<std::jthread> helpers;
  for (int k = 1; k < std::min(threads, count); ++k) {
    try {
      helpers.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // no more threads here: the others do it
    }
  }
  work();
  helpers.clear();
  failure.Rethrow();
}

}  // namespace tvm_sched::threads
