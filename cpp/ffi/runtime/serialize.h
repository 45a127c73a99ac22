// The bytes of a module inside an artifact.
#ifndef TVM_SCHED_FFI_RUNTIME_SERIALIZE_H_
#define TVM_SCHED_FFI_RUNTIME_SERIALIZE_H_

#include <tvm/ffi/string.h>

#include <string>

#include "ffi/runtime/parameters.h"

namespace tvm_sched::runtime {

struct ModuleContent {
  std::string plans_json;
  std::string metadata_json;
  ParameterStore::Embedded embedded;
};

tvm::ffi::Bytes Serialize(const ModuleContent& content);

/// Bytes with their checksum behind them, which tells damage, not malice.
tvm::ffi::Bytes Sealed(std::string bytes);

/// Throws FormatError where the bytes are cut off, of another format, or of a newer version.
ModuleContent Deserialize(const tvm::ffi::Bytes& bytes);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_SERIALIZE_H_
