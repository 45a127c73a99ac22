// Throws errors of tvm_ffi. Only these macros are used for it: tvm_ffi's own throw from a
// destructor while their operands are evaluated, so that an operand that throws would end the
// process.
#ifndef TVM_SCHED_RUNTIME_THROW_H_
#define TVM_SCHED_RUNTIME_THROW_H_

#include <tvm/ffi/error.h>

#include <sstream>
#include <string>
#include <utility>

namespace tvm_sched {

/// The text of an error. What an operand throws leaves it as any other exception.
class Message {
 public:
  template <typename T>
  Message&& operator<<(const T& part) && {
    text_ << part;
    return std::move(*this);
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

/// Throws the error once its message is complete: assignment evaluates its right operand first.
struct ErrorOfKind {
  const char* kind;
  const TVMFFIByteArray* backtrace;
  [[noreturn]] void operator=(const Message& message) const {
    throw tvm::ffi::Error(kind, message.text(), backtrace);
  }
};

}  // namespace tvm_sched

/// Throw an error of a kind of Python's with a message: TVM_SCHED_THROW(ValueError) << "..." << x;
#define TVM_SCHED_THROW(kind)                                                                 \
  ::tvm_sched::ErrorOfKind{#kind, TVMFFIBacktrace(__FILE__, __LINE__, TVM_FFI_FUNC_SIG, 0)} = \
      ::tvm_sched::Message()

/// The same where a condition does not hold.
#define TVM_SCHED_CHECK(condition, kind) \
  if (!(condition)) TVM_SCHED_THROW(kind) << "Check failed: (" #condition ") is false: "

#endif  // TVM_SCHED_RUNTIME_THROW_H_
