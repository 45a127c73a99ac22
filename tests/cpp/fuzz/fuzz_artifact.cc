// Any bytes as the module in an artifact: read with its plans, parameters and metadata, or refused.
// Where the first byte is even, the rest gets a valid beginning and checksum, which no mutation
// would find by itself.
#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "ffi/runtime/module.h"
#include "ffi/runtime/serialize.h"

namespace {

namespace ffi = tvm::ffi;

/// Header and data, apart at the first zero byte, as a module's bytes.
ffi::Bytes Framed(const std::string& text) {
  const std::size_t length = text.find('\0') == std::string::npos ? text.size() : text.find('\0');
  std::string bytes = "tvm_sched.module";
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i) & 0xff));
  bytes += text.substr(0, length);
  if (length < text.size()) bytes += text.substr(length + 1);
  return tvm_sched::runtime::Sealed(std::move(bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const ffi::Bytes bytes = data[0] % 2 == 0 ? Framed(rest) : ffi::Bytes(rest);
    const ffi::Module module = tvm_sched::runtime::ScheduledModule::LoadFromBytes(bytes);
    module->GetFunction("info").value()();
    module->GetFunction("parameters").value()();
    module->SaveToBytes();
  } catch (const ffi::Error& error) {
    // What is wrong in the bytes is a ValueError; another processor than this one is no fault.
    if (error.kind() != "ValueError" && error.kind() != "RuntimeError") throw;
  }
  return 0;
}
