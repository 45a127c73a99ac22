#include "runtime/cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

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

DriverApi Open() {
  const std::string file = FileName();
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw CudaMissingError("the CUDA driver cannot be loaded (" + std::string(dlerror()) + ")");
  }
  DriverApi api;
#define TVM_SCHED_CUDA_RESOLVE(member, symbol, ...)                             \
  api.member = reinterpret_cast<decltype(api.member)>(dlsym(library, #symbol)); \
  if (api.member == nullptr) {                                                  \
    throw CudaError(file + " has no function " #symbol                          \
                           ": the driver is too old; CUDA 12"                   \
                           " or newer is needed");                              \
  }
  TVM_SCHED_CUDA_FUNCTIONS(TVM_SCHED_CUDA_RESOLVE)
#undef TVM_SCHED_CUDA_RESOLVE
  return api;
}

std::string DescribeWith(const DriverApi& api, Result result) {
  const char *name = nullptr, *text = nullptr;
  api.GetErrorName(result, &name);
  api.GetErrorString(result, &text);
  return std::string(name == nullptr ? "CUDA error " + std::to_string(result) : name) +
         (text == nullptr ? "" : " (" + std::string(text) + ")");
}

/// Streams share as many connections to a GPU as this says, 8 unless it is set, and then wait for
/// each other; the driver reads it when it is initialised.
constexpr const char* kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr const char* kMostConnections = "32";

struct Opened {
  DriverApi api = Open();
  pid_t owner = getpid();

  Opened() {
    const StageTimer timer("driver");
    setenv(kConnections, kMostConnections, /*overwrite=*/0);
    if (const Result result = api.Init(0); result != kSuccess) {
      throw CudaMissingError("the CUDA driver finds no usable device: cuInit gave " +
                             DescribeWith(api, result));
    }
  }
};

/// Made at the first call that succeeds: a driver that is missing is looked for again.
const Opened& TheDriver() {
  static const Opened opened;
  return opened;
}

}  // namespace

CudaMissingError::CudaMissingError(std::string reason)
    : CudaError(reason + kRemedy), reason_(std::move(reason)) {}

const DriverApi& Driver() {
  const Opened& opened = TheDriver();
  if (opened.owner != getpid()) {
    throw CudaError(
        "this process was forked from one that uses CUDA, which does not survive a fork: start "
        "processes with \"spawn\", or run the model in the child only");
  }
  return opened.api;
}

std::string Describe(Result result) { return DescribeWith(TheDriver().api, result); }

ContextGuard::ContextGuard() {
  Check(Driver().ContextGetCurrent(&former_), "asking for the context failed");
}

ContextGuard::~ContextGuard() { TheDriver().api.ContextSetCurrent(former_); }

void Check(Result result, const std::string& what) {
  if (result == kSuccess) return;
  const std::string text = what + ": " + Describe(result);
  if (result == kOutOfMemory) throw CudaMemoryError(text);
  throw CudaError(text);
}

}  // namespace tvm_sched::runtime::cuda
