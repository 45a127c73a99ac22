// Registry of the runs of this process, so that signals and process exit can cancel them.
#ifndef TVM_SCHED_FFI_RUNTIME_PROCESS_H_
#define TVM_SCHED_FFI_RUNTIME_PROCESS_H_

namespace tvm_sched::runtime {

/// Throws what Python has raised meanwhile (KeyboardInterrupt, mostly), and ffi::Error
/// (RuntimeError) once StopRuns was called.
void Poll();

/// Give up all runs of this process, now and later: each fails as soon as no kernel works for it.
/// Returns how many are still under way. For the end of an interpreter, after which no thread may
/// ask it for anything: Python would end that thread in the midst of a run.
int StopRuns();

/// While it lives, other threads of Python run, if this one had Python's lock.
class WithoutPythonsLock {
 public:
  WithoutPythonsLock();
  ~WithoutPythonsLock();
  WithoutPythonsLock(const WithoutPythonsLock&) = delete;
  WithoutPythonsLock& operator=(const WithoutPythonsLock&) = delete;

 private:
  void* state_ = nullptr;  // of the thread; null where there was no lock to give up
};

/// Counts as a run under way while it lives.
class RunUnderWay {
 public:
  RunUnderWay();
  ~RunUnderWay();
  RunUnderWay(const RunUnderWay&) = delete;
  RunUnderWay& operator=(const RunUnderWay&) = delete;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_PROCESS_H_
