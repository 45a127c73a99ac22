#include "ffi/runtime/process.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <unistd.h>

#include <atomic>

namespace tvm_sched::runtime {

namespace {

std::atomic<bool> stopped{false};
std::atomic<int> under_way{0};
/// Whose runs are counted: after a fork, those of the parent's threads are nobody's.
std::atomic<int> owner{0};

void CountAnewAfterFork() {
  if (owner.exchange(getpid()) != getpid()) under_way.store(0);
}

}  // namespace

void Poll() {
  if (stopped.load()) {
    TVM_FFI_THROW(RuntimeError) << "the run was given up because the process is ending";
  }
  if (TVMFFIEnvCheckSignals() != 0) throw tvm::ffi::EnvErrorAlreadySet();
}

int StopRuns() {
  CountAnewAfterFork();
  stopped.store(true);
  return under_way.load();
}

RunUnderWay::RunUnderWay() {
  CountAnewAfterFork();
  under_way.fetch_add(1);
}

RunUnderWay::~RunUnderWay() { under_way.fetch_sub(1); }

}  // namespace tvm_sched::runtime
