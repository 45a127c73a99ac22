// Sections of code during which this process is not forked.
#ifndef TVM_SCHED_THREADS_NO_FORK_H_
#define TVM_SCHED_THREADS_NO_FORK_H_

namespace tvm_sched::threads {

/// While a thread has one, fork() in another thread waits. A child has a copy of the forking thread
/// alone: what others hold at that moment, a lock of ours or one inside of a library, is held there
/// for ever.
///
/// Take it before the lock, for times of milliseconds, and wait in it only for threads that have
/// one or need none: a thread that begins one waits while a fork does.
class __attribute__((visibility("default"))) NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

}  // namespace tvm_sched::threads

#endif  // TVM_SCHED_THREADS_NO_FORK_H_
