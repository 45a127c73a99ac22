#include "threads/pool.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace tvm_sched::threads {

namespace {

/// The calling thread's arena of a size. Each thread has its own: in one that is full of other
/// callers it would have to wait for them.
tbb::task_arena& ArenaOf(int threads) {
  thread_local std::map<int, tbb::task_arena> arenas;
  return arenas.try_emplace(threads, threads).first->second;
}

}  // namespace

void Enter(int threads, Callback<> work) {
  threads = std::max(threads, 1);
  // Where the caller is in such an arena already, there is nothing to change.
  if (tbb::this_task_arena::current_thread_index() == 0 &&
      tbb::this_task_arena::max_concurrency() == threads) {
    return work();
  }
  ArenaOf(threads).execute(work);
}

void Loop(int threads, int count, Callback<int> body) {
  if (threads <= 1 || count <= 1) {
    for (int k = 0; k < count; ++k) body(k);
    return;
  }
  Enter(threads,
        [&] { tbb::parallel_for(0, count, [&](int k) { body(k); }, tbb::simple_partitioner()); });
}

void LoopOnNewThreads(int threads, int count, Callback<int> body) {
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    try {
      for (int k = next++; k < count; k = next++) body(k);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
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
  if (first) std::rethrow_exception(first);
}

}  // namespace tvm_sched::threads
