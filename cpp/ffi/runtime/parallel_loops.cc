#include "ffi/runtime/parallel_loops.h"

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "ffi/kernel_libraries.h"
#include "runtime/kernel_threads.h"
#include "threads/pool.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;

namespace {

// As TVM declares them in tvm/runtime/c_backend_api.h, which is not needed to build us.
struct GroupEnvironment {
  void* sync_handle;
  std::int32_t num_task;
};
using Lambda = int (*)(int task, GroupEnvironment* environment, void* data);
using Launch = int (*)(Lambda lambda, void* data, int tasks);

constexpr const char* kSymbol = "__TVMBackendParallelLaunch";

/// Parts of a loop for each thread, so that one that comes late finds less left to do.
constexpr int kPartsOfThread = 2;

std::atomic<Launch> others{nullptr};

/// Threads do not share their errors: the first one of a loop goes to the thread that began it.
class FirstError {
 public:
  void Take() {
    TVMFFIObjectHandle raised = nullptr;
    TVMFFIErrorMoveFromRaised(&raised);
    const std::lock_guard lock(mutex_);
    if (failed_) {
      if (raised != nullptr) TVMFFIObjectDecRef(raised);
      return;
    }
    failed_ = true;
    error_ = raised;
  }
  int Raise() const {
    if (!failed_) return 0;
    if (error_ != nullptr) {
      TVMFFIErrorSetRaised(error_);
      TVMFFIObjectDecRef(error_);
    }
    return -1;
  }

 private:
  std::mutex mutex_;
  bool failed_ = false;
  TVMFFIObjectHandle error_ = nullptr;
};

int ParallelLaunch(Lambda lambda, void* data, int tasks) {
  const int threads = KernelThreads::Current();
  const Launch other = others.load();
  const PoolLoop loop = threads > 1 && tasks != 1 ? FindPoolLoop() : nullptr;
  const bool ours = threads == 1 || tasks == 1 || loop != nullptr;
  if (threads == 0 || !ours) {
    if (other != nullptr) return other(lambda, data, tasks);
  }
  GroupEnvironment environment{nullptr, tasks};
  if (tasks == 0) environment.num_task = loop == nullptr ? 1 : threads * kPartsOfThread;
  if (loop == nullptr) {
    int code = 0;
    for (int k = 0; code == 0 && k < environment.num_task; ++k)
      code = lambda(k, &environment, data);
    return code;
  }
  FirstError error;
  loop(threads, environment.num_task, [&](int task) {
    // A loop inside of a task has no further threads.
    const KernelThreads alone(1);
    if (lambda(task, &environment, data) != 0) error.Take();
  });
  return error.Raise();
}

/// What the symbol is now.
void* CurrentSymbol() {
  void* found = nullptr;
  ffi::Module::VisitContextSymbols(
      ffi::TypedFunction<void(ffi::String, void*)>([&](const ffi::String& name, void* symbol) {
        if (name == kSymbol) found = symbol;
      }));
  return found;
}

}  // namespace

void TakeParallelLoops() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  void* const ours = reinterpret_cast<void*>(&ParallelLaunch);
  void* const current = CurrentSymbol();
  if (current == ours) return;
  if (current != nullptr) others = reinterpret_cast<Launch>(current);
  TVM_FFI_CHECK_SAFE_CALL(TVMFFIEnvModRegisterContextSymbol(kSymbol, ours));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef().def("tvm_sched.take_parallel_loops", TakeParallelLoops);
  TakeParallelLoops();
}

}  // namespace tvm_sched::runtime
