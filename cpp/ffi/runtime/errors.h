// Converts exceptions of the core into errors that tvm_ffi passes to the caller's language.
#ifndef TVM_SCHED_FFI_RUNTIME_ERRORS_H_
#define TVM_SCHED_FFI_RUNTIME_ERRORS_H_

#include <tvm/ffi/error.h>

#include <new>
#include <stdexcept>

#include "runtime/cuda/driver.h"
#include "runtime/executor.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// Call `body`; what was wrong in the input becomes ValueError, any other failure RuntimeError.
template <typename Body>
auto TranslateErrors(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const tvm::ffi::Error&) {
    throw;
  } catch (const std::invalid_argument& error) {
    throw tvm::ffi::Error("ValueError", error.what(), "");
  } catch (const cuda::CudaMemoryError& error) {
    throw tvm::ffi::Error("MemoryError", error.what(), "");
  } catch (const std::bad_alloc&) {
    throw tvm::ffi::Error("MemoryError", "not enough memory for the plan's arenas or outputs", "");
  } catch (const std::exception& error) {
    throw tvm::ffi::Error("RuntimeError", error.what(), "");
  }
}

/// Throw the error of a step again, with the operator and its device in the message.
[[noreturn]] void RethrowStepError(const Plan& plan, const StepError& error);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_ERRORS_H_
