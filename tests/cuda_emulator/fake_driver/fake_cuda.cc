// A CUDA driver without a GPU, for the tests of the backend: device memory is memory of the host,
// each stream is a thread that does its work late, and what a real driver would refuse is refused
// here: copies from memory that is not pinned, handles of another context, copies between GPUs that
// are no peers, waits that leave a capture. Accesses to the same bytes that no order is between are
// an error, see happens_before.h. It is stricter than CUDA and says nothing of kernels or speed.
#include "fake_cuda.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "state.h"

using namespace fake_cuda;

namespace {

std::vector<Range> Ranges(const FakeCudaAccess* accesses, int count) {
  std::vector<Range> ranges;
  for (int k = 0; k < count; ++k) {
    const auto begin = reinterpret_cast<std::uintptr_t>(accesses[k].data);
    ranges.push_back({begin, begin + accesses[k].size, accesses[k].written != 0});
  }
  return ranges;
}

}  // namespace

EXPORT void fake_cuda_configure(int devices, long long memory, int peers) {
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  state.devices = devices;
  state.memory = memory;
  state.peers = Peers{peers};
  state.pinned = 1LL << 40;
  state.spoilt = Spoilt::kNothing;
  for (auto& [device, context] : state.contexts) context.peers.clear();
  state.failures.clear();
  state.lost.clear();
  state.calls.clear();
  state.trace.clear();
  state.fault = kOk;
  state.conflicts = 0;
  state.accesses.Clear();
}

EXPORT void fake_cuda_spoil_peers(int how) {
  std::lock_guard lock(TheState().mutex);
  TheState().spoilt = Spoilt{how};
}

EXPORT void fake_cuda_limit_pinned(long long bytes) {
  std::lock_guard lock(TheState().mutex);
  TheState().pinned = bytes;
}

EXPORT int fake_cuda_conflicts(char* text, int size) {
  std::lock_guard lock(TheState().mutex);
  std::snprintf(text, static_cast<std::size_t>(size), "%s", TheState().fault_text.c_str());
  return TheState().conflicts;
}

EXPORT void fake_cuda_live(FakeCudaLive* live) {
  const State& state = TheState();
  std::lock_guard lock(TheState().mutex);
  *live = {static_cast<int>(state.streams.size()), static_cast<int>(state.events.size()),
           state.graphs, state.executables, state.modules};
  for (const auto& [device, context] : state.contexts) {
    live->streams -= context.default_stream != nullptr ? 1 : 0;
  }
}

EXPORT void tvm_sched_kernel_accesses(const FakeCudaAccess* accesses, int count) {
  noted = Ranges(accesses, count);
}

EXPORT void tvm_sched_host_accesses(const FakeCudaAccess* accesses, int count) {
  std::lock_guard lock(TheState().mutex);
  std::vector<Range> ranges;
  for (const Range& range : Ranges(accesses, count)) {
    // The host's own memory is no concern of the driver's.
    if (OwnerOf(range.begin, 1) != -2) ranges.push_back(range);
  }
  TouchFromHost("the host", ranges);
}

EXPORT void fake_cuda_fail(const char* function, int skip, int code) {
  std::lock_guard lock(TheState().mutex);
  TheState().failures[function] = {skip, code, false};
}

EXPORT void fake_cuda_lose(const char* function, int skip) {
  std::lock_guard lock(TheState().mutex);
  TheState().failures[function] = {skip, kLaunchFailed, true};
}

EXPORT void fake_cuda_find_again() {
  std::lock_guard lock(TheState().mutex);
  TheState().lost.clear();
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
  Submit(record, [=] { function(data); }, 'K', KernelTouching("of the host", {}));
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
      {719, "CUDA_ERROR_LAUNCH_FAILED"},   {999, "CUDA_ERROR_UNKNOWN"}};
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
  ENTER(cuDeviceGetCount);
  *count = TheState().devices;
  return kOk;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
  ENTER(cuDeviceGet);
  *device = ordinal;
  return ordinal < TheState().devices ? kOk : 101;
}
EXPORT int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  ENTER(cuDeviceCanAccessPeer);
  *can = device != peer && MayReach(device, peer) ? 1 : 0;
  return kOk;
}
EXPORT int cuDevicePrimaryCtxRetain(ContextRecord** context, int device) {
  ENTER(cuDevicePrimaryCtxRetain);
  std::lock_guard lock(TheState().mutex);
  *context = &TheState().contexts.try_emplace(device, ContextRecord{device}).first->second;
  return kOk;
}
EXPORT int cuCtxSetCurrent(ContextRecord* context) {
  ENTER_ALWAYS(cuCtxSetCurrent);
  current = context;
  return kOk;
}
EXPORT int cuCtxGetCurrent(ContextRecord** context) {
  ENTER_ALWAYS(cuCtxGetCurrent);
  *context = current;
  return kOk;
}
EXPORT int cuCtxEnablePeerAccess(ContextRecord* peer, unsigned) {
  ENTER(cuCtxEnablePeerAccess);
  std::lock_guard lock(TheState().mutex);
  if (current == nullptr) return kInvalidContext;
  if (!MayReach(current->device, peer->device)) return kPeersUnsupported;
  return current->peers.insert(peer->device).second ? kOk : kAlreadyEnabled;
}
EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER(cuCtxGetStreamPriorityRange);
  *least = 0;
  *greatest = -5;
  return kOk;
}
EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ENTER(cuMemGetInfo_v2);
  std::lock_guard lock(TheState().mutex);
  if (current == nullptr) return kInvalidContext;
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
EXPORT int cuMemFree_v2(std::uintptr_t address) {
  ENTER_ALWAYS(cuMemFree_v2);
  return Release(address);
}
EXPORT int cuMemHostAlloc(void** address, std::size_t size, unsigned flags) {
  ENTER(cuMemHostAlloc);
  std::lock_guard lock(TheState().mutex);
  if (current == nullptr) return kInvalidContext;
  if (Used(-1) + static_cast<long long>(size) > TheState().pinned) return kOutOfMemory;
  *address = Reserve(size, -1, flags);
  return kOk;
}
EXPORT int cuMemFreeHost(void* address) {
  ENTER_ALWAYS(cuMemFreeHost);
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
  if (Used(-1) + static_cast<long long>(size) > state.pinned) return kOutOfMemory;
  state.allocations[begin] = {size, -1, flags, current, true};
  return kOk;
}
EXPORT int cuMemHostUnregister(void* address) {
  ENTER_ALWAYS(cuMemHostUnregister);
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  const auto found = state.allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == state.allocations.end() || !found->second.registered) return kNotRegistered;
  Forget(found);
  return kOk;
}
EXPORT int cuMemcpyAsync(std::uintptr_t to, std::uintptr_t from, std::size_t size,
                         StreamRecord* stream) {
  ENTER(cuMemcpyAsync);
  std::lock_guard lock(TheState().mutex);
  stream = Resolve(stream);
  if (stream == nullptr) return kInvalidHandle;
  const Allocation *target = Find(to, size), *source = Find(from, size);
  if (target == nullptr || source == nullptr) return kInvalidValue;
  for (const Allocation* end : {target, source}) {
    // For this context it is memory like any other, and the copy would not be asynchronous.
    const bool pinned = end->device == -1 && (end->flags & kPortable) == 0;
    if (pinned && end->context != stream->context) return kInvalidValue;
  }
  if (target->device >= 0 && source->device >= 0 && target->device != source->device) {
    return CopyBetween(to, from, size, stream);
  }
  const int gpu = std::max(target->device, source->device);
  if (gpu >= 0 && gpu != stream->context->device) return kInvalidContext;
  SubmitCopy(to, from, size, stream);
  if (TheState().spoilt == Spoilt::kTimeOfHost) AddSecond(stream);
  return kOk;
}
