// Names by which Python chooses among the values of an enum.
#ifndef TVM_SCHED_FFI_NAMES_H_
#define TVM_SCHED_FFI_NAMES_H_

#include <tvm/ffi/tvm_ffi.h>

#include <cstddef>
#include <string_view>
#include <utility>

#include "runtime/throw.h"

namespace tvm_sched {

/// The value that has this name; ValueError where none has.
/// \param what What is chosen, for the message.
template <typename Enum, std::size_t kCount>
Enum ValueOfName(const char* what, const tvm::ffi::String& name,
                 const std::pair<std::string_view, Enum> (&values)[kCount]) {
  for (const auto& [known, value] : values) {
    if (std::string_view(name.data(), name.size()) == known) return value;
  }
  std::string allowed;
  for (const auto& [known, value] : values) {
    allowed += (allowed.empty() ? "" : ", ") + std::string(known);
  }
  TVM_SCHED_THROW(ValueError) << "there is no " << what << " \"" << name << "\"; there are "
                              << allowed;
}

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_NAMES_H_
