#include "ffi/runtime/errors.h"

#include <string>

namespace tvm_sched::runtime {

using tvm::ffi::Error;

void RethrowStepError(const Plan& plan, const StepError& error) {
  const std::string place = plan.DescribeStep(error.step()) + " failed: ";
  try {
    std::rethrow_exception(error.cause());
  } catch (const Error& cause) {
    // An error that is already set in Python is set in the kernel's thread.
    const bool elsewhere = cause.kind() == "EnvErrorAlreadySet";
    if (elsewhere && error.on_this_thread()) throw;
    throw Error(elsewhere ? "RuntimeError" : cause.kind(), place + cause.message(),
                cause.backtrace());
  } catch (const std::exception& cause) {
    throw Error("RuntimeError", place + cause.what(), "");
  } catch (...) {
    throw Error("RuntimeError", place + "an exception of unknown type", "");
  }
}

}  // namespace tvm_sched::runtime
