// In the place of Intel's libintlc, where that is not installed: the two functions of it that the
// library onednn-cpu-tbb calls.
#include <cstring>

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void* _intel_fast_memcpy(void* to, const void* from, std::size_t size) {
  return std::memcpy(to, from, size);
}

EXPORTED void* _intel_fast_memset(void* to, int value, std::size_t size) {
  return std::memset(to, value, size);
}
