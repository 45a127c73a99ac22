// The driver's functions for modules and kernels, in place of fake_driver/modules.cc: an
// image that the stand-in for nvcc has made is loaded, and its kernels run in their stream's order.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "../fake_driver/devices.h"
#include "../fake_driver/state.h"
#include "block.h"

using namespace fake_cuda;
using cuda_emulator::Fault;
using cuda_emulator::Image;
using cuda_emulator::Kernel;
using cuda_emulator::Launch;

namespace {

constexpr int kInvalidImage = 200, kNoBinary = 209, kNotFound = 500, kOutOfResources = 701;
constexpr int kAttributeDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

struct ModuleRecord {
  ContextRecord* context;
  void* library;
  Image* image;
};

struct FunctionRecord {
  ContextRecord* context;
  const Kernel* kernel;
  int dynamic_shared;  // that a launch may ask for
};

struct ImageParts {
  std::string targets;
  const char* library = nullptr;
  std::size_t bytes = 0;
};

/// False where the bytes are no image of the stand-in.
bool Read(const void* bytes, ImageParts& parts) {
  cuda_emulator::ImageHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  const char* at = static_cast<const char*>(bytes) + sizeof(header);
  if (header.magic != cuda_emulator::ImageHeader{}.magic || std::memcmp(at, "EMULATED", 8) != 0) {
    return false;
  }
  std::uint32_t length = 0;
  std::memcpy(&length, at + 8, sizeof(length));
  parts.targets.assign(at + 12, length);
  parts.library = at + 12 + length;
  parts.bytes = header.payload - 12 - length;
  return true;
}

/// Whether one of "sm_90 compute_80" runs on a GPU: binaries within their major version, PTX on
/// everything that is newer.
bool RunsOn(const std::string& targets, int arch) {
  std::istringstream words(targets);
  for (std::string word; words >> word;) {
    const bool ptx = word.rfind("compute_", 0) == 0;
    const std::string number = word.substr(word.find('_') + 1);
    const int built = std::atoi(number.c_str());
    const bool exact = !std::isdigit(static_cast<unsigned char>(number.back()));  // sm_90a
    if (exact ? built == arch : ptx ? built <= arch : built / 10 == arch / 10 && built <= arch) {
      return true;
    }
  }
  return false;
}

/// A file of its own, so that each context has its own variables.
void* Open(const ImageParts& parts) {
  std::string path = "/tmp/cuda_emulator.XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return nullptr;
  void* library = nullptr;
  if (write(file, parts.library, parts.bytes) == static_cast<ssize_t>(parts.bytes)) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::fprintf(stderr, "emulated GPU: %s\n", dlerror());
  }
  close(file);
  unlink(path.c_str());
  return library;
}

/// The arguments of a launch, copied as the driver does.
struct Arguments {
  std::vector<std::vector<char>> values;
  std::vector<void*> addresses;

  Arguments(const Kernel& kernel, void** given) {
    for (unsigned k = 0; k < kernel.count; ++k) {
      const auto* bytes = static_cast<const char*>(given[k]);
      values.emplace_back(bytes, bytes + kernel.parameters[k].bytes);
    }
    for (auto& value : values) addresses.push_back(value.data());
  }
};

/// Each pointer has to lead to memory that the GPU can reach when the kernel runs.
Fault CheckPointers(const Kernel& kernel, const Arguments& arguments,
                    const ContextRecord& context) {
  std::lock_guard lock(TheState().mutex);
  for (unsigned k = 0; k < kernel.count; ++k) {
    if (!kernel.parameters[k].pointer) continue;
    std::uintptr_t address = 0;
    std::memcpy(&address, arguments.addresses[k], sizeof(address));
    if (address == 0) continue;
    const std::string why = WhyNotReached(address, context);
    if (why.empty()) continue;
    return {cuda_emulator::kIllegalAddress, "kernel \"" + std::string(kernel.name) +
                                                "\": argument " + std::to_string(k) + " " + why};
  }
  return {};
}

void Remember(const Fault& fault) {
  if (fault.code == 0) return;
  std::lock_guard lock(TheState().mutex);
  if (TheState().fault == kOk) SetFault(fault.code, fault.text);
}

std::vector<std::uintptr_t> PointersOf(const Kernel& kernel, const Arguments& arguments) {
  std::vector<std::uintptr_t> pointers;
  for (unsigned k = 0; k < kernel.count; ++k) {
    if (!kernel.parameters[k].pointer) continue;
    std::memcpy(&pointers.emplace_back(), arguments.addresses[k], sizeof(std::uintptr_t));
  }
  return pointers;
}

int CheckLaunch(const FunctionRecord& function, const Launch& launch) {
  const int device = function.context->device;
  const auto limit = [device](int attribute) {
    return static_cast<unsigned>(AttributeOf(attribute, device));
  };
  const unsigned block[] = {launch.block.x, launch.block.y, launch.block.z};
  const unsigned grid[] = {launch.grid.x, launch.grid.y, launch.grid.z};
  for (int axis = 0; axis < 3; ++axis) {
    if (block[axis] == 0 || block[axis] > limit(kMaxBlockX + axis)) return kInvalidValue;
    if (grid[axis] == 0 || grid[axis] > limit(kMaxGridX + axis)) return kInvalidValue;
  }
  const std::uint64_t threads = std::uint64_t{block[0]} * block[1] * block[2];
  if (threads > limit(kMaxThreadsPerBlock)) return kInvalidValue;
  if (function.kernel->largest_block != 0 && threads > function.kernel->largest_block) {
    return kOutOfResources;
  }
  if (launch.dynamic_shared > static_cast<std::size_t>(function.dynamic_shared)) {
    return kInvalidValue;
  }
  return kOk;
}

}  // namespace

EXPORT int cuModuleLoadData(ModuleRecord** module, const void* bytes) {
  ENTER(cuModuleLoadData);
  if (current == nullptr) return kInvalidContext;
  ImageParts parts;
  if (!Read(bytes, parts)) return kInvalidImage;
  if (!RunsOn(parts.targets, ArchitectureOf(current->device))) return kNoBinary;
  void* library = Open(parts);
  if (library == nullptr) return kInvalidImage;
  auto* image = static_cast<Image*>(dlsym(library, "cuda_emulator_image"));
  image->device = &cuda_emulator::kDevice;
  *module = new ModuleRecord{current, library, image};
  std::lock_guard lock(TheState().mutex);
  ++TheState().modules;
  return kOk;
}

// The library stays: a stream may still run its kernels.
EXPORT int cuModuleUnload(ModuleRecord* module) {
  ENTER_ALWAYS(cuModuleUnload);
  std::lock_guard lock(TheState().mutex);
  delete module;
  --TheState().modules;
  return kOk;
}

EXPORT int cuModuleGetFunction(FunctionRecord** function, ModuleRecord* module, const char* name) {
  ENTER(cuModuleGetFunction);
  if (module->context != current) return kInvalidContext;
  for (unsigned k = 0; k < module->image->count; ++k) {
    const Kernel& kernel = module->image->kernels[k];
    if (std::strcmp(kernel.name, name) != 0) continue;
    *function = new FunctionRecord{current, &kernel, AttributeOf(kSharedPerBlock, current->device)};
    return kOk;
  }
  return kNotFound;
}

EXPORT int cuFuncSetAttribute(FunctionRecord* function, int attribute, int value) {
  ENTER(cuFuncSetAttribute);
  if (attribute != kAttributeDynamicShared) return kOk;  // carveouts and the like
  const int device = function->context->device;
  if (value < 0 || value > AttributeOf(kSharedPerBlockOptIn, device)) return kInvalidValue;
  function->dynamic_shared = value;
  return kOk;
}

EXPORT int cuLaunchKernel(FunctionRecord* function, unsigned gx, unsigned gy, unsigned gz,
                          unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          StreamRecord* stream, void** given, void** extra) {
  ENTER(cuLaunchKernel);
  std::lock_guard lock(TheState().mutex);
  if (stream == nullptr || Resolve(stream) == nullptr) return kInvalidHandle;
  if (stream->context != current || function->context != current) return kInvalidContext;
  if (extra != nullptr) return kInvalidValue;
  Launch launch{function->kernel, {gx, gy, gz}, {bx, by, bz}, shared, 0, TheState().random()};
  launch.largest_shared = static_cast<std::size_t>(
      std::max(AttributeOf(kSharedPerBlock, current->device), function->dynamic_shared));
  if (const int refused = CheckLaunch(*function, launch); refused != kOk) return refused;
  auto arguments = std::make_shared<Arguments>(*function->kernel, given);
  const auto run = [launch, arguments, context = current] {
    if (TheState().fault != kOk) return;
    Fault fault = CheckPointers(*launch.kernel, *arguments, *context);
    if (fault.code == 0) fault = cuda_emulator::Run(launch, arguments->addresses.data());
    Remember(fault);
  };
  Submit(stream, run, 'K',
         KernelTouching(function->kernel->name, PointersOf(*function->kernel, *arguments)));
  return kOk;
}
