// Any bytes as the other documents that are read from JSON: options of runs, an artifact's
// metadata, descriptions of compiled kernels.
#include <cstddef>
#include <cstdint>
#include <string>

#include "ffi/runtime/timeline.h"
#include "runtime/json_cursor.h"
#include "runtime/machine.h"
#include "runtime/processor.h"

namespace {

using namespace tvm_sched::runtime;

template <typename Reader>
void Try(Reader reader) {
  try {
    reader();
  } catch (const FormatError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Try([&] { ReadOptions(JsonCursor::Parse(text, "options"), {}); });
  Try([&] { WhyNotHere(JsonCursor::Parse(text, "metadata")); });
  Try([&] { Differences(JsonCursor::Parse(text, "metadata"), ThisMachine(false)); });
  return 0;
}
