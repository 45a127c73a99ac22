// A CUDA driver without a GPU, for the tests of the backend: device memory is memory of the host,
// each stream is a thread that does its work late, and everything that a real driver would refuse
// or that would be a race is refused here: copies from memory that is not pinned, handles of
// another context, copies between GPUs that are no peers, waits that leave a capture. It is
// stricter than CUDA, so what passes here has its order and its handles right; it says nothing of
// kernels or speed.
#include "fake_cuda.h"

#include <algorithm>
#include <cctype>

#include "state.h"

using namespace fake_cuda;

EXPORT void fake_cuda_configure(int devices, long long memory, int peers) {
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  state.devices = devices;
  state.memory = memory;
  state.peers = peers != 0;
  for (auto& [device, context] : state.contexts) context.peers.clear();
  state.failures.clear();
  state.calls.clear();
  state.trace.clear();
  state.fault = kOk;
}

EXPORT void fake_cuda_fail(const char* function, int skip, int code) {
  std::lock_guard lock(TheState().mutex);
  TheState().failures[function] = {skip, code};
}

EXPORT int fake_cuda_calls(const char* function) {
  std::lock_guard lock(TheState().mutex);
  return TheState().calls[function];
}

EXPORT void fake_cuda_trace(char* text, int size) {
  std::lock_guard lock(TheState().mutex);
  const std::string& trace = TheState().trace;
  const auto length = std::min(trace.size(), static_cast<std::size_t>(size) - 1);
  trace.copy(text, length);
  text[length] = 0;
}

EXPORT long long fake_cuda_allocated(int device) {
  std::lock_guard lock(TheState().mutex);
  return Used(device);
}

EXPORT int fake_cuda_enqueue(void* stream, void (*function)(void*), void* data) {
  auto* record = static_cast<StreamRecord*>(stream);
  std::lock_guard lock(TheState().mutex);
  if (record->context != current) return kInvalidContext;
  Submit(record, [=] { function(data); }, 'K');
  return kOk;
}

EXPORT int cuInit(unsigned) {
  ENTER(cuInit);
  return TheState().devices > 0 ? kOk : 100;
}
EXPORT int cuGetErrorName(int code, const char** text) {
  static const std::map<int, const char*> names{
      {1, "CUDA_ERROR_INVALID_VALUE"},     {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {100, "CUDA_ERROR_NO_DEVICE"},       {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {716, "CUDA_ERROR_MISALIGNED_ADDRESS"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"}};
  const auto found = names.find(code);
  *text = found == names.end() ? nullptr : found->second;
  return *text == nullptr ? kInvalidValue : kOk;
}
EXPORT int cuGetErrorString(int code, const char** text) {
  const State& state = TheState();
  *text = code != kOk && code == state.fault ? state.fault_text.c_str() : nullptr;
  return *text == nullptr ? kInvalidValue : kOk;
}
EXPORT int cuDeviceGetCount(int* count) {
  *count = TheState().devices;
  return kOk;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < TheState().devices ? kOk : 101;
}
EXPORT int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = TheState().peers ? 1 : 0;
  return kOk;
}
EXPORT int cuDevicePrimaryCtxRetain(ContextRecord** context, int device) {
  ENTER(cuDevicePrimaryCtxRetain);
  std::lock_guard lock(TheState().mutex);
  *context = &TheState().contexts.try_emplace(device, ContextRecord{device}).first->second;
  return kOk;
}
EXPORT int cuCtxSetCurrent(ContextRecord* context) {
  current = context;
  return kOk;
}
EXPORT int cuCtxGetCurrent(ContextRecord** context) {
  *context = current;
  return kOk;
}
EXPORT int cuCtxEnablePeerAccess(ContextRecord* peer, unsigned) {
  std::lock_guard lock(TheState().mutex);
  return current->peers.insert(peer->device).second ? kOk : kAlreadyEnabled;
}
EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kOk;
}
EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  std::lock_guard lock(TheState().mutex);
  *total = static_cast<std::size_t>(TheState().memory);
  *free = *total - static_cast<std::size_t>(Used(current->device));
  return kOk;
}
EXPORT int cuMemAlloc_v2(std::uintptr_t* address, std::size_t size) {
  ENTER(cuMemAlloc_v2);
  std::lock_guard lock(TheState().mutex);
  if (current == nullptr) return kInvalidContext;
  if (Used(current->device) + static_cast<long long>(size) > TheState().memory) {
    return kOutOfMemory;
  }
  *address = reinterpret_cast<std::uintptr_t>(Reserve(size, current->device));
  return kOk;
}
EXPORT int cuMemFree_v2(std::uintptr_t address) { return Release(address); }
EXPORT int cuMemHostAlloc(void** address, std::size_t size, unsigned) {
  ENTER(cuMemHostAlloc);
  std::lock_guard lock(TheState().mutex);
  *address = Reserve(size, -1);
  return kOk;
}
EXPORT int cuMemFreeHost(void* address) {
  return Release(reinterpret_cast<std::uintptr_t>(address));
}
/// Whole pages, as the driver pins them. A copy stays within one registration, see OwnerOf.
EXPORT int cuMemHostRegister_v2(void* address, std::size_t size, unsigned flags) {
  ENTER(cuMemHostRegister_v2);
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  if (size == 0 || begin % kPage != 0) return kInvalidValue;
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  if (current == nullptr) return kInvalidContext;
  if (!ReadableAndWritable(begin, size, (flags & kRegisterReadOnly) != 0)) return kInvalidValue;
  const auto after = state.allocations.lower_bound(begin);
  if (after != state.allocations.end() && after->first < begin + size) return kAlreadyRegistered;
  if (after != state.allocations.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.size > begin) return kAlreadyRegistered;
  }
  state.allocations[begin] = {size, -1, true};
  return kOk;
}
EXPORT int cuMemHostUnregister(void* address) {
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  const auto found = state.allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == state.allocations.end() || !found->second.registered) return kNotRegistered;
  state.allocations.erase(found);
  return kOk;
}
EXPORT int cuMemcpyAsync(std::uintptr_t to, std::uintptr_t from, std::size_t size,
                         StreamRecord* stream) {
  ENTER(cuMemcpyAsync);
  std::lock_guard lock(TheState().mutex);
  stream = Resolve(stream);
  const int target = OwnerOf(to, size), source = OwnerOf(from, size);
  if (target == -2 || source == -2) return kInvalidValue;
  if (target >= 0 && source >= 0 && target != source) return CopyBetween(to, from, size, stream);
  return SubmitCopy(to, from, size, stream);
}
