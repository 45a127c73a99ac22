// Sections of code during which this process is not forked.
#ifndef TVM_SCHED_THREADS_NO_FORK_H_
#define TVM_SCHED_THREADS_NO_FORK_H_

namespace tvm_sched::threads {

/// While a thread has one, fork() in another thread waits. A child has a copy of the forking thread
/// alone: what others hold at that moment, a lock of ours or one inside of a library, is held there
/// for ever.
///
/// Take it before any lock and hold it for milliseconds. Inside, never wait for a thread that has
/// yet to take one: while a fork waits, new sections wait for the fork.
class __attribute__((visibility("default"))) NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

}  // namespace tvm_sched::threads

#endif  // TVM_SCHED_THREADS_NO_FORK_H_
