#include "runtime/cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "runtime/stages.h"

namespace tvm_sched::runtime::cuda {

namespace {

constexpr const char* kVariable = "TVM_SCHED_CUDA_DRIVER";
constexpr const char* kRemedy =
    "; install NVIDIA's driver and check it with nvidia-smi, or compile for the backend "
    "\"emulated\" or for a topology of CPU devices";

std::string FileName() {
  const char* named = std::getenv(kVariable);
  return named != nullptr && *named != '\0' ? named : "libcuda.so.1";
}

using NoteAccesses = void (*)(const Access*, int);

struct Library {
  DriverApi api;
  NoteAccesses kernels = nullptr, host = nullptr;  // of a driver that checks the order
};

Library Open() {
  const std::string file = FileName();
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw CudaMissingError("the CUDA driver cannot be loaded (" + std::string(dlerror()) + ")");
  }
  Library found;
  DriverApi& api = found.api;
#define TVM_SCHED_CUDA_RESOLVE(member, symbol, ...)                             \
  api.member = reinterpret_cast<decltype(api.member)>(dlsym(library, #symbol)); \
  if (api.member == nullptr) {                                                  \
    throw CudaError(file + " has no function " #symbol                          \
                           ": the driver is too old; CUDA 12"                   \
                           " or newer is needed");                              \
  }
  TVM_SCHED_CUDA_FUNCTIONS(TVM_SCHED_CUDA_RESOLVE)
#undef TVM_SCHED_CUDA_RESOLVE
  found.kernels = reinterpret_cast<NoteAccesses>(dlsym(library, "tvm_sched_kernel_accesses"));
  found.host = reinterpret_cast<NoteAccesses>(dlsym(library, "tvm_sched_host_accesses"));
  return found;
}

std::string DescribeWith(const DriverApi& api, Result result) {
  const char *name = nullptr, *text = nullptr;
  api.GetErrorName(result, &name);
  api.GetErrorString(result, &text);
  return std::string(name == nullptr ? "CUDA error " + std::to_string(result) : name) +
         (text == nullptr ? "" : " (" + std::string(text) + ")");
}

/// Streams share as many connections to a GPU as this says, 8 unless it is set, and then wait for
/// each other; the driver reads it when it is initialised. Each one makes opening a GPU slower.
constexpr const char* kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr int kUsualConnections = 8, kMostConnections = 32;
std::atomic<int> wanted_connections{0};

/// A driver that checks the order; null until it is opened: who notes an access does not open it.
std::atomic<const Library*> checking{nullptr};

struct Opened {
  Library library = Open();
  pid_t owner = getpid();

  Opened() {
    const StageTimer timer("driver");
    if (const int wanted = wanted_connections.load(); wanted > kUsualConnections) {
      setenv(kConnections, std::to_string(wanted).c_str(), /*overwrite=*/0);
    }
    if (const Result result = library.api.Init(0); result != kSuccess) {
      throw CudaMissingError("the CUDA driver finds no usable device: cuInit gave " +
                             DescribeWith(library.api, result));
    }
    if (library.kernels != nullptr && library.host != nullptr) checking.store(&library);
  }
};

/// Made at the first call that succeeds: a driver that is missing is looked for again.
const Opened& TheDriver() {
  static const Opened opened;
  return opened;
}

}  // namespace

void WantConnections(int streams) {
  const int wanted = std::min(streams, kMostConnections);
  int known = wanted_connections.load();
  while (known < wanted && !wanted_connections.compare_exchange_weak(known, wanted)) {
  }
}

CudaMissingError::CudaMissingError(std::string reason)
    : CudaError(reason + kRemedy), reason_(std::move(reason)) {}

const DriverApi& Driver() {
  const Opened& opened = TheDriver();
  if (opened.owner != getpid()) {
    throw CudaError(
        "this process was forked from one that uses CUDA, which does not survive a fork: start "
        "processes with \"spawn\", or run the model in the child only");
  }
  return opened.library.api;
}

namespace {

/// None in a forked child, where a thread that is not there may hold the driver's lock.
const Library* Checking() {
  const Library* library = checking.load();
  return library != nullptr && TheDriver().owner == getpid() ? library : nullptr;
}

}  // namespace

bool ChecksOrder() { return Checking() != nullptr; }

void NoteKernelAccesses(const std::vector<Access>& accesses) {
  const Library* library = Checking();
  if (library == nullptr) return;
  library->kernels(accesses.data(), static_cast<int>(accesses.size()));
}

void NoteHostAccesses(const std::vector<Access>& accesses) {
  const Library* library = Checking();
  if (library == nullptr) return;
  library->host(accesses.data(), static_cast<int>(accesses.size()));
}

std::string Describe(Result result) { return DescribeWith(TheDriver().library.api, result); }

ContextGuard::ContextGuard() {
  Check(Driver().ContextGetCurrent(&former_), "asking for the context failed");
}

ContextGuard::~ContextGuard() { TheDriver().library.api.ContextSetCurrent(former_); }

void Check(Result result, const std::string& what) {
  if (result == kSuccess) return;
  const std::string text = what + ": " + Describe(result);
  if (result == kOutOfMemory) throw CudaMemoryError(text);
  throw CudaError(text);
}

}  // namespace tvm_sched::runtime::cuda
