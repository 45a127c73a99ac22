#include "threads/no_fork.h"

#include <pthread.h>

namespace tvm_sched::threads {

namespace {

pthread_rwlock_t gate;
thread_local int depth = 0;  // of the calling thread's sections

/// Unlike std::shared_mutex, a waiting writer comes before new readers: threads that begin one
/// section after the other would keep a fork waiting.
void MakeGate() {
  pthread_rwlockattr_t kind;
  pthread_rwlockattr_init(&kind);
  pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&gate, &kind);
  pthread_rwlockattr_destroy(&kind);
}

// A thread that forks within a section of its own does not wait for itself.
void Close() {
  if (depth == 0) pthread_rwlock_wrlock(&gate);
}
void Open() {
  if (depth == 0) pthread_rwlock_unlock(&gate);
}
/// The parent's threads that wait to begin are counted in the child's copy, too.
void OpenInChild() {
  MakeGate();
  if (depth > 0) pthread_rwlock_rdlock(&gate);
}

[[gnu::constructor]] void Register() {
  MakeGate();
  pthread_atfork(Close, Open, OpenInChild);
}

}  // namespace

NoFork::NoFork() {
  if (depth++ == 0) pthread_rwlock_rdlock(&gate);
}

NoFork::~NoFork() {
  if (--depth == 0) pthread_rwlock_unlock(&gate);
}

}  // namespace tvm_sched::threads
