// Modules and kernels where nothing is executed; tests/cuda_emulator has others in their place.
#include "state.h"

using namespace fake_cuda;

// Modules hold any kernel that is asked for. A launch does nothing but check its order and context;
// the arguments of a kernel named "fake_add" are added up: (a, b, out) of one int64 each.
EXPORT int cuModuleLoadData(ContextRecord** module, const void*) {
  ENTER(cuModuleLoadData);
  if (current == nullptr) return kInvalidContext;
  *module = current;
  std::lock_guard lock(TheState().mutex);
  ++TheState().modules;
  return kOk;
}
EXPORT int cuModuleUnload(void*) {
  ENTER_ALWAYS(cuModuleUnload);
  std::lock_guard lock(TheState().mutex);
  --TheState().modules;
  return kOk;
}
EXPORT int cuModuleGetFunction(std::string** function, void*, const char* name) {
  ENTER(cuModuleGetFunction);
  *function = new std::string(name);
  return kOk;
}
EXPORT int cuFuncSetAttribute(void*, int, int) {
  ENTER(cuFuncSetAttribute);
  return kOk;
}
EXPORT int cuLaunchKernel(std::string* function, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, unsigned, StreamRecord* stream, void** arguments, void**) {
  ENTER(cuLaunchKernel);
  std::lock_guard lock(TheState().mutex);
  if (stream == nullptr || Resolve(stream) == nullptr) return kInvalidHandle;
  if (stream->context != current) return kInvalidContext;
  if (*function != "fake_add") {
    Submit(stream, [] {}, 'K', KernelTouching(*function, {}));
    return kOk;
  }
  std::vector<std::int64_t*> data;
  Touching touching{"kernel \"fake_add\"", {}};
  for (int k = 0; k < 3; ++k) {
    data.push_back(*static_cast<std::int64_t**>(arguments[k]));
    const auto address = reinterpret_cast<std::uintptr_t>(data.back());
    if (!WhyNotReached(address, *current).empty()) return kIllegalAddress;
    touching.ranges.push_back({address, address + sizeof(std::int64_t), k == 2});
  }
  Submit(stream, [data] { *data[2] = *data[0] + *data[1]; }, 'K', std::move(touching));
  return kOk;
}
