// Finds kernel libraries when an artifact or the compiler asks for one: a shared library of its own
// beside this one, so that this one needs none of them.
#include "ffi/kernel_libraries.h"

#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/throw.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
namespace fs = std::filesystem;

namespace {

/// A library that one of our libraries depends on.
struct Dependency {
  std::string soname;
  const char* variable;  // environment variable that names its file, or null
  /// Whether a library of this name is the one that is meant; null: any is.
  bool (*accepts)(void* handle) = nullptr;
};

/// One of our libraries next to this one: its dependencies, and the message if it is missing.
struct Library {
  std::string file;
  std::vector<Dependency> dependencies;  // in the order in which they are opened
  std::string remedy;
};

constexpr const char* kRemedy =
    "pip install 'onednn-cpu-tbb==2023.2.0' 'tbb==2021.*' brings what it needs, where libdnnl.so.3 "
    "of "
    "another package (onednn-cpu-gomp, onednn) does not lie in its place: uninstall that first";

/// oneDNN built for other threads than TBB's would not share them.
bool UsesTbb(void* handle) {
  struct Version {  // the beginning of dnnl_version_t, with oneDNN 3
    int major, minor, patch;
    const char* hash;
    unsigned cpu_runtime;
  };
  constexpr unsigned kTbb = 4;
  const auto version = reinterpret_cast<const Version* (*)()>(dlsym(handle, "dnnl_version"));
  return version != nullptr && version()->major == 3 && version()->cpu_runtime == kTbb;
}

const Library& Threads() {
  static const Library library{
      "libtvm_sched_threads.so", {{"libtbb.so.12", "TVM_SCHED_TBB"}}, kRemedy};
  return library;
}

const Library& OneDnn() {
  // Intel's libimf and libintlc are taken where they are installed; others may need them in full.
  static const Library library{"libtvm_sched_onednn.so",
                               {{"libtbb.so.12", "TVM_SCHED_TBB"},
                                {"libimf.so", nullptr},
                                {"libintlc.so.5", nullptr},
                                {"libdnnl.so.3", "TVM_SCHED_DNNL", UsesTbb}},
                               kRemedy};
  return library;
}

fs::path FileOf(const void* symbol) {
  Dl_info info;
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  return fs::absolute(info.dli_fname, ignored);
}

fs::path OwnFolder() { return FileOf(reinterpret_cast<const void*>(&OneDnn)).parent_path(); }

/// Where pip puts libraries: `lib` of the environment that holds this library or tvm_ffi; then the
/// folder of this library.
std::vector<fs::path> Candidates(const std::string& soname) {
  std::vector<fs::path> result;
  std::error_code ignored;
  const auto add = [&](const fs::path& place) {
    if (fs::is_regular_file(place, ignored)) result.push_back(place);
  };
  for (const fs::path& file : {FileOf(reinterpret_cast<const void*>(&OneDnn)),
                               FileOf(reinterpret_cast<const void*>(&TVMFFIErrorCreate))}) {
    for (fs::path folder = file.parent_path().parent_path(); folder.has_relative_path();
         folder = folder.parent_path()) {
      add(folder / soname);
      add(folder / "lib" / soname);
    }
  }
  add(OwnFolder() / soname);
  return result;
}

/// Opens a library and keeps it, if it is the one that is meant.
bool OpenFile(const Dependency& dependency, const std::string& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return false;
  if (dependency.accepts == nullptr || dependency.accepts(handle)) return true;
  dlclose(handle);
  return false;
}

void OpenDependency(const Dependency& dependency) {
  const char* path = dependency.variable == nullptr ? nullptr : std::getenv(dependency.variable);
  if (path != nullptr && *path != '\0') {
    if (OpenFile(dependency, path)) return;
    const char* reason = dlerror();
    TVM_SCHED_THROW(RuntimeError) << path << ", which the environment variable "
                                  << dependency.variable << " names, cannot be loaded: "
                                  << (reason == nullptr ? "it does not use TBB's threads" : reason);
  }
  for (const fs::path& place : Candidates(dependency.soname)) {
    if (OpenFile(dependency, place.string())) return;
  }
  // Not an error yet: the library may know where it was built.
  OpenFile(dependency, dependency.soname);
}

void Open(const Library& library) {
  const fs::path ours = OwnFolder() / library.file;
  std::error_code ignored;
  if (!fs::is_regular_file(ours, ignored)) {
    TVM_SCHED_THROW(RuntimeError) << ours.string()
                                  << " does not exist: tvm_sched was built without "
                                  << "the headers of oneDNN and TBB. Install them (pip install "
                                  << "onednn-devel-cpu-tbb 'tbb-devel==2021.*') and build again";
  }
  for (const Dependency& dependency : library.dependencies) OpenDependency(dependency);
  if (dlopen(ours.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* reason = dlerror();
    TVM_SCHED_THROW(RuntimeError) << ours.string() << " cannot be loaded: "
                                  << (reason == nullptr ? "unknown reason" : reason) << ". "
                                  << library.remedy
                                  << ", or name the files in the environment variables "
                                  << "TVM_SCHED_TBB and TVM_SCHED_DNNL";
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

ffi::Array<ffi::String> FastestOneDnn(const ffi::String& json) {
  return OneDnnFunction("tvm_sched.onednn.fastest_implementations")(json)
      .cast<ffi::Array<ffi::String>>();
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

PoolLoop FindPoolLoop() {
  static const PoolLoop found = [] {
    try {
      if (!ffi::Function::GetGlobal("tvm_sched.threads.loop")) Open(Threads());
      const ffi::Function address = ffi::Function::GetGlobalRequired("tvm_sched.threads.loop");
      return reinterpret_cast<PoolLoop>(address().cast<void*>());
    } catch (const ffi::Error&) {
      return PoolLoop{nullptr};
    }
  }();
  return found;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tvm_sched.make_onednn_module", MakeOneDnn)
      .def("tvm_sched.onednn_implementation", OneDnnImplementation)
      .def(
          "tvm_sched.onednn_layouts",
          [](const ffi::String& json) {
            return OneDnnFunction("tvm_sched.onednn.layouts")(json).cast<ffi::Array<ffi::String>>();
          })
      .def("tvm_sched.onednn_packed_elements",
           [](const ffi::String& json, int operand, const ffi::String& layout) {
             return OneDnnFunction("tvm_sched.onednn.packed_elements")(json, operand, layout)
                 .cast<std::int64_t>();
           })
      .def("tvm_sched.onednn_pack",
           [](const ffi::String& json, int operand, const ffi::String& layout,
              const ffi::Tensor& from, const ffi::Tensor& to) {
             OneDnnFunction("tvm_sched.onednn.pack")(json, operand, layout, from, to);
           })
      .def("tvm_sched.onednn_fastest_implementations", FastestOneDnn)
      .def(
          "tvm_sched.onednn_found_wrong",
          [] {
            return OneDnnFunction("tvm_sched.onednn.found_wrong")().cast<ffi::Array<ffi::String>>();
          })
      .def("tvm_sched.onednn_checks_run",
           [] { return OneDnnFunction("tvm_sched.onednn.checks_run")().cast<int>(); })
      .def("tvm_sched.why_not_onednn", WhyNotOneDnn)
      .def("ffi.Module.load_from_bytes.tvm_sched_onednn", LoadOneDnn);
}

}  // namespace tvm_sched::runtime
