// What the fake driver says of itself and of its GPUs.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "state.h"

using namespace fake_cuda;

namespace {

/// A number that the environment gives, such as FAKE_CUDA_VERSION, or another.
int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

EXPORT int cuDriverGetVersion(int* version) {
  *version = FromEnvironment("FAKE_CUDA_VERSION", 13000);
  return kOk;
}
EXPORT int cuDeviceGetName(char* name, int size, int device) {
  // FAKE_CUDA_NAMES="A;B": the first GPU is an A, the second a B.
  const char* names = std::getenv("FAKE_CUDA_NAMES");
  std::string text = names == nullptr ? "" : names;
  for (int skipped = 0; skipped < device && !text.empty(); ++skipped) {
    const std::size_t end = text.find(';');
    text = end == std::string::npos ? "" : text.substr(end + 1);
  }
  text = text.substr(0, text.find(';'));
  if (text.empty()) text = "fake GPU " + std::to_string(device);
  std::snprintf(name, static_cast<std::size_t>(size), "%s", text.c_str());
  return kOk;
}
EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  std::lock_guard lock(TheState().mutex);
  *bytes = static_cast<std::size_t>(TheState().memory);
  return kOk;
}
EXPORT int cuDeviceGetPCIBusId(char* address, int size, int device) {
  std::snprintf(address, static_cast<std::size_t>(size), "0000:%02X:00.0", device + 1);
  return kOk;
}
