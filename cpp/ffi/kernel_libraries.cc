// Finds kernel libraries when an artifact or the compiler asks for one: a shared library of its own
// beside this one, so that this one needs none of them.
#include <dlfcn.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
namespace fs = std::filesystem;

namespace {

/// A kernel library: what it needs, and how to say that it is missing.
struct Library {
  std::string file;        // ours, beside libtvm_sched
  std::string dependency;  // the soname of what it stands on
  std::string variable;    // environment variable that names the dependency's file
  std::string remedy;
};

const Library& OneDnn() {
  static const Library library{"libtvm_sched_onednn.so", "libdnnl.so.3", "TVM_SCHED_DNNL",
                               "pip install 'onednn-cpu-gomp==2023.2.0' brings it"};
  return library;
}

fs::path FileOf(const void* symbol) {
  Dl_info info;
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  return fs::absolute(info.dli_fname, ignored);
}

/// Where pip puts libraries: `lib` of the environment that holds this library or tvm_ffi.
std::vector<fs::path> Candidates(const Library& library) {
  std::vector<fs::path> result;
  for (const fs::path& file : {FileOf(reinterpret_cast<const void*>(&OneDnn)),
                               FileOf(reinterpret_cast<const void*>(&TVMFFIErrorCreate))}) {
    for (fs::path folder = file.parent_path(); folder.has_relative_path();
         folder = folder.parent_path()) {
      for (const fs::path& place :
           {folder / library.dependency, folder / "lib" / library.dependency}) {
        std::error_code ignored;
        if (fs::is_regular_file(place, ignored)) result.push_back(place);
      }
    }
  }
  return result;
}

void OpenDependency(const Library& library) {
  if (const char* path = std::getenv(library.variable.c_str()); path != nullptr && *path != '\0') {
    if (dlopen(path, RTLD_NOW | RTLD_LOCAL) != nullptr) return;
    TVM_FFI_THROW(RuntimeError) << path << ", which the environment variable " << library.variable
                                << " names, cannot be loaded: " << dlerror();
  }
  for (const fs::path& path : Candidates(library)) {
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
  }
  if (dlopen(library.dependency.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
  // Not an error yet: the library may know where it was built.
}

/// Lets OpenMP's threads sleep between kernels rather than spin, unless the user has said
/// otherwise, so that a device that waits leaves its cores to the others. On a quiet machine it
/// makes no difference that could be measured (squeezenet on two threads: 1.64 ms either way).
/// OpenMP reads this when it is loaded.
class QuietOpenMp {
 public:
  QuietOpenMp() {
    ours_ = std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv(kName) == nullptr;
    if (ours_) setenv(kName, "0", /*overwrite=*/1);
  }
  ~QuietOpenMp() {
    if (ours_) unsetenv(kName);
  }

 private:
  static constexpr const char* kName = "GOMP_SPINCOUNT";
  bool ours_ = false;
};

void Open(const Library& library) {
  const QuietOpenMp quiet;
  const fs::path ours = FileOf(reinterpret_cast<const void*>(&OneDnn)).parent_path() / library.file;
  std::error_code ignored;
  if (!fs::is_regular_file(ours, ignored)) {
    TVM_FFI_THROW(RuntimeError) << ours.string() << " does not exist: tvm_sched was built without "
                                << "oneDNN's headers. Install them (pip install "
                                << "onednn-devel-cpu-gomp onednn-cpu-gomp) and build again";
  }
  OpenDependency(library);
  if (dlopen(ours.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* reason = dlerror();
    TVM_FFI_THROW(RuntimeError) << ours.string() << " cannot be loaded: "
                                << (reason == nullptr ? "unknown reason" : reason) << ". It needs "
                                << library.dependency << ": " << library.remedy << ", or name the "
                                << "file in the environment variable " << library.variable;
  }
}

ffi::Function OneDnnFunction(const char* name) {
  if (auto found = ffi::Function::GetGlobal(name)) return *found;
  Open(OneDnn());
  return ffi::Function::GetGlobalRequired(name);
}

ffi::Module LoadOneDnn(const ffi::Bytes& bytes) {
  return OneDnnFunction("tvm_sched.onednn.load_module")(bytes).cast<ffi::Module>();
}

ffi::Module MakeOneDnn(const ffi::String& json) {
  return OneDnnFunction("tvm_sched.onednn.make_module")(json).cast<ffi::Module>();
}

ffi::String OneDnnImplementation(const ffi::String& json) {
  return OneDnnFunction("tvm_sched.onednn.implementation")(json).cast<ffi::String>();
}

/// Why the library cannot be used here; empty where it can.
ffi::String WhyNotOneDnn() {
  try {
    OneDnnFunction("tvm_sched.onednn.make_module");
    return "";
  } catch (const ffi::Error& error) {
    return error.message();
  }
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tvm_sched.make_onednn_module", MakeOneDnn)
      .def("tvm_sched.onednn_implementation", OneDnnImplementation)
      .def("tvm_sched.why_not_onednn", WhyNotOneDnn)
      .def("ffi.Module.load_from_bytes.tvm_sched_onednn", LoadOneDnn);
}

}  // namespace tvm_sched::runtime
