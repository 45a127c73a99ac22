// Any bytes as a file of parameters: every tensor that is found lies in the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "runtime/json_cursor.h"
#include "runtime/safetensors.h"

namespace {

/// A file in memory, by a path that can be opened.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : file_(memfd_create("fuzz", 0)) {
    for (std::size_t done = 0; done < size;) {
      const ssize_t written = write(file_, data + done, size - done);
      if (written < 0) std::abort();
      done += static_cast<std::size_t>(written);
    }
  }
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tvm_sched::runtime;
  const MemoryFile file(data, size);
  try {
    const SafetensorsFile stored = OpenSafetensors(file.path());
    const std::byte* end = stored.file->data() + size;
    for (const auto& [name, tensor] : stored.tensors) {
      if (tensor.data < stored.file->data() || tensor.data + tensor.spec.size().count > end) {
        std::abort();
      }
    }
  } catch (const FormatError&) {
  }
  return 0;
}
