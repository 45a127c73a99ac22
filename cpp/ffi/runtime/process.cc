#include "ffi/runtime/process.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <unistd.h>

#include <atomic>

#include "runtime/throw.h"

namespace tvm_sched::runtime {

namespace {

std::atomic<bool> stopped{false};
std::atomic<int> under_way{0};
/// Whose runs are counted: after a fork, those of the parent's threads are nobody's.
std::atomic<int> owner{0};

void CountAnewAfterFork() {
  if (owner.exchange(getpid()) != getpid()) under_way.store(0);
}

/// A function of the interpreter in this process; null where there is none. Python is not linked: a
/// program in C++ has none.
template <typename Function>
Function OfPython(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

void Poll() {
  if (stopped.load()) {
    // Python ends a thread by this kind without printing: a daemon thread that prints while the
    // interpreter ends may hold the stream's lock, and then Python aborts the process.
    TVM_SCHED_THROW(SystemExit) << "the run was given up because the process is ending";
  }
  if (TVMFFIEnvCheckSignals() != 0) throw tvm::ffi::EnvErrorAlreadySet();
}

int StopRuns() {
  CountAnewAfterFork();
  stopped.store(true);
  return under_way.load();
}

WithoutPythonsLock::WithoutPythonsLock() {
  const auto initialized = OfPython<int (*)()>("Py_IsInitialized");
  const auto has_lock = OfPython<int (*)()>("PyGILState_Check");
  const auto give_up = OfPython<void* (*)()>("PyEval_SaveThread");
  if (initialized == nullptr || has_lock == nullptr || give_up == nullptr) return;
  if (initialized() != 0 && has_lock() != 0) state_ = give_up();
}

WithoutPythonsLock::~WithoutPythonsLock() {
  if (state_ != nullptr) OfPython<void (*)(void*)>("PyEval_RestoreThread")(state_);
}

RunUnderWay::RunUnderWay() {
  CountAnewAfterFork();
  under_way.fetch_add(1);
}

RunUnderWay::~RunUnderWay() { under_way.fetch_sub(1); }

}  // namespace tvm_sched::runtime
