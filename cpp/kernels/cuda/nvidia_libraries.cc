#include "kernels/cuda/nvidia_libraries.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "runtime/cuda/driver.h"
#include "runtime/cuda/gpus.h"
#include "runtime/throw.h"

namespace tvm_sched::cuda_kernels {

namespace fs = std::filesystem;

namespace {

/// A version of a library, and the CUDA that the driver must know for it.
struct Version {
  const char* soname;
  int driver = 0;
};

struct Library {
  const char* name;
  std::vector<Version> versions;  // newest first
  const char* variable;
  const char* remedy;
  const char* version_function;
};

const Library& CublasLtLibrary() {
  static const Library library{"cuBLASLt",
                               {{"libcublasLt.so.13", 13000}, {"libcublasLt.so.12", 12000}},
                               "TVM_SCHED_CUBLASLT",
                               "pip install nvidia-cublas brings it",
                               "cublasLtGetVersion"};
  return library;
}

const Library& CudnnLibrary() {
  static const Library library{"cuDNN",
                               {{"libcudnn.so.9"}},
                               "TVM_SCHED_CUDNN",
                               "pip install nvidia-cudnn-cu13 brings it",
                               "cudnnGetVersion"};
  return library;
}

/// What the driver knows; the compiler, which needs no driver, takes the newest library.
int NewestCuda() {
  try {
    return runtime::cuda::DriverVersion();
  } catch (const runtime::cuda::CudaError&) {
    return std::numeric_limits<int>::max();
  }
}

/// The versions by preference: those that the driver does not support come last, in case that it
/// does after all (by NVIDIA's package for compatibility).
std::vector<std::string> Sonames(const Library& library) {
  std::vector<Version> versions = library.versions;
  const int cuda = NewestCuda();
  std::stable_partition(versions.begin(), versions.end(),
                        [&](const Version& version) { return version.driver <= cuda; });
  std::vector<std::string> names;
  for (const Version& version : versions) names.emplace_back(version.soname);
  return names;
}

/// Where pip puts NVIDIA's libraries: `nvidia/*/lib` beside the package whose file this is.
void AddWheels(const void* symbol, const std::string& soname, std::vector<std::string>& files) {
  Dl_info info;
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return;
  std::error_code ignored;
  const fs::path packages =
      fs::absolute(info.dli_fname, ignored).parent_path().parent_path() / "..";
  for (const fs::directory_entry& entry : fs::directory_iterator(packages / "nvidia", ignored)) {
    const fs::path file = entry.path() / "lib" / soname;
    if (fs::is_regular_file(file, ignored)) files.push_back(file.string());
  }
}

std::vector<std::string> Candidates(const Library& library) {
  const char* named = std::getenv(library.variable);
  if (named != nullptr && *named != '\0') return {named};
  std::vector<std::string> files;
  for (const std::string& soname : Sonames(library)) {
    AddWheels(reinterpret_cast<const void*>(&CublasLt), soname, files);
    AddWheels(reinterpret_cast<const void*>(&TVMFFIErrorCreate), soname, files);
    files.push_back(soname);
  }
  return files;
}

void* Open(const Library& library) {
  std::string reasons;
  for (const std::string& file : Candidates(library)) {
    if (void* opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
    reasons += std::string(reasons.empty() ? "" : "; ") + dlerror();
  }
  TVM_SCHED_THROW(RuntimeError) << library.name << " cannot be loaded (" << reasons
                                << "): " << library.remedy
                                << ", or name its file in the environment "
                                << "variable " << library.variable;
}

void* Resolve(void* opened, const Library& library, const char* symbol) {
  void* found = dlsym(opened, symbol);
  if (found == nullptr) {
    TVM_SCHED_THROW(RuntimeError) << library.name << " has no function " << symbol
                                  << ": another version is needed; " << library.remedy;
  }
  return found;
}

#define TVM_SCHED_LIBRARY_RESOLVE(member, symbol, ...) \
  api.member = reinterpret_cast<decltype(api.member)>(Resolve(opened, library, #symbol));

CublasLtApi OpenCublasLt() {
  const Library& library = CublasLtLibrary();
  void* opened = Open(library);
  CublasLtApi api;
  TVM_SCHED_CUBLASLT_FUNCTIONS(TVM_SCHED_LIBRARY_RESOLVE)
  return api;
}

CudnnApi OpenCudnn() {
  CublasLt();  // cuDNN needs it, and takes the one that is loaded
  const Library& library = CudnnLibrary();
  void* opened = Open(library);
  CudnnApi api;
  TVM_SCHED_CUDNN_FUNCTIONS(TVM_SCHED_LIBRARY_RESOLVE)
  return api;
}

/// Where it was opened before.
void* OpenedCudnn() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(Cudnn().Create), &info) == 0) return nullptr;
  return dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

/// cuDNN opens NVRTC by its name alone, and so finds the one of a wheel only if it is open.
void OpenNvrtc() {
  for (const char* soname : {"libnvrtc.so.13", "libnvrtc.so.12"}) {
    std::vector<std::string> files{soname};
    AddWheels(reinterpret_cast<const void*>(&CublasLt), soname, files);
    AddWheels(reinterpret_cast<const void*>(&TVMFFIErrorCreate), soname, files);
    for (const std::string& file : files) {
      if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
    }
  }
}

std::unique_ptr<CudnnGraphApi> OpenCudnnGraph() try {
  void* opened = OpenedCudnn();
  if (opened == nullptr) return nullptr;
  const Library& library = CudnnLibrary();
  CudnnGraphApi api;
  TVM_SCHED_CUDNN_GRAPH_FUNCTIONS(TVM_SCHED_LIBRARY_RESOLVE)
  OpenNvrtc();
  return std::make_unique<CudnnGraphApi>(api);
} catch (const tvm::ffi::Error&) {
  return nullptr;
}

std::size_t AskCudnnVersion() try {
  void* opened = OpenedCudnn();
  using Ask = std::size_t (*)();
  const auto ask = opened == nullptr
                       ? nullptr
                       : reinterpret_cast<Ask>(dlsym(opened, CudnnLibrary().version_function));
  return ask == nullptr ? 0 : ask();
} catch (const tvm::ffi::Error&) {
  return 0;
}

#undef TVM_SCHED_LIBRARY_RESOLVE

}  // namespace

const CublasLtApi& CublasLt() {
  static const CublasLtApi api = OpenCublasLt();
  return api;
}

const CudnnApi& Cudnn() {
  static const CudnnApi api = OpenCudnn();
  return api;
}

const CudnnGraphApi* CudnnGraph() {
  static const std::unique_ptr<CudnnGraphApi> api = OpenCudnnGraph();
  return api.get();
}

std::size_t CudnnVersion() {
  static const std::size_t version = AskCudnnVersion();
  return version;
}

namespace {

InstalledLibrary Describe(const Library& library, const std::function<const void*()>& function) {
  InstalledLibrary found{library.name, "", 0, ""};
  try {
    Dl_info info;
    const void* symbol = function();  // opens it
    if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return found;
    found.file = info.dli_fname;
    void* opened = dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    using Ask = std::size_t (*)();
    const auto version = opened == nullptr
                             ? nullptr
                             : reinterpret_cast<Ask>(dlsym(opened, library.version_function));
    if (version != nullptr) found.version = version();
  } catch (const tvm::ffi::Error& error) {
    found.problem = error.message();
  }
  return found;
}

}  // namespace

std::vector<InstalledLibrary> FindLibraries() {
  return {
      Describe(CublasLtLibrary(), [] { return reinterpret_cast<const void*>(CublasLt().Create); }),
      Describe(CudnnLibrary(), [] { return reinterpret_cast<const void*>(Cudnn().Create); }),
  };
}

void CheckStatus(int status, const std::string& what) {
  if (status != 0) TVM_SCHED_THROW(RuntimeError) << what << ": status " << status;
}

}  // namespace tvm_sched::cuda_kernels
