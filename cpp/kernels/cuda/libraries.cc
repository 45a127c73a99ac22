#include "kernels/cuda/libraries.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace tvm_sched::cuda_kernels {

namespace fs = std::filesystem;

namespace {

struct Library {
  const char* name;
  std::vector<const char*> sonames;  // newest first
  const char* variable;
  const char* remedy;
};

/// Where pip puts NVIDIA's libraries: `nvidia/*/lib` beside the package whose file this is.
void AddWheels(const void* symbol, const Library& library, std::vector<std::string>& files) {
  Dl_info info;
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return;
  std::error_code ignored;
  const fs::path packages =
      fs::absolute(info.dli_fname, ignored).parent_path().parent_path() / "..";
  for (const fs::directory_entry& entry : fs::directory_iterator(packages / "nvidia", ignored)) {
    for (const char* soname : library.sonames) {
      const fs::path file = entry.path() / "lib" / soname;
      if (fs::is_regular_file(file, ignored)) files.push_back(file.string());
    }
  }
}

std::vector<std::string> Candidates(const Library& library) {
  const char* named = std::getenv(library.variable);
  if (named != nullptr && *named != '\0') return {named};
  std::vector<std::string> files;
  AddWheels(reinterpret_cast<const void*>(&CublasLt), library, files);
  AddWheels(reinterpret_cast<const void*>(&TVMFFIErrorCreate), library, files);
  files.insert(files.end(), library.sonames.begin(), library.sonames.end());
  return files;
}

void* Open(const Library& library) {
  std::string reasons;
  for (const std::string& file : Candidates(library)) {
    if (void* opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
    reasons += std::string(reasons.empty() ? "" : "; ") + dlerror();
  }
  TVM_FFI_THROW(RuntimeError) << library.name << " cannot be loaded (" << reasons
                              << "): " << library.remedy << ", or name its file in the environment "
                              << "variable " << library.variable;
  TVM_FFI_UNREACHABLE();
}

void* Resolve(void* opened, const Library& library, const char* symbol) {
  void* found = dlsym(opened, symbol);
  if (found == nullptr) {
    TVM_FFI_THROW(RuntimeError) << library.name << " has no function " << symbol
                                << ": another version is needed; " << library.remedy;
  }
  return found;
}

#define TVM_SCHED_LIBRARY_RESOLVE(member, symbol, ...) \
  api.member = reinterpret_cast<decltype(api.member)>(Resolve(opened, library, #symbol));

CublasLtApi OpenCublasLt() {
  const Library library{"cuBLASLt",
                        {"libcublasLt.so.13", "libcublasLt.so.12"},
                        "TVM_SCHED_CUBLASLT",
                        "pip install nvidia-cublas brings it"};
  void* opened = Open(library);
  CublasLtApi api;
  TVM_SCHED_CUBLASLT_FUNCTIONS(TVM_SCHED_LIBRARY_RESOLVE)
  return api;
}

CudnnApi OpenCudnn() {
  CublasLt();  // cuDNN needs it, and takes the one that is loaded
  const Library library{
      "cuDNN", {"libcudnn.so.9"}, "TVM_SCHED_CUDNN", "pip install nvidia-cudnn-cu13 brings it"};
  void* opened = Open(library);
  CudnnApi api;
  TVM_SCHED_CUDNN_FUNCTIONS(TVM_SCHED_LIBRARY_RESOLVE)
  return api;
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

void CheckStatus(int status, const std::string& what) {
  if (status != 0) TVM_FFI_THROW(RuntimeError) << what << ": status " << status;
}

}  // namespace tvm_sched::cuda_kernels
