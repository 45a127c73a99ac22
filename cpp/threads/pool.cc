#include "threads/pool.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <map>

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

}  // namespace tvm_sched::threads
