// The runtime module of kind "tvm_sched_onednn": kernels by name. Its bytes are their descriptions.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "ffi/runtime/errors.h"
#include "kernels/onednn/kernel.h"

namespace tvm_sched::onednn {

namespace ffi = tvm::ffi;

namespace {

int CoresOf(const Document& document) {
  return ffi::Function::GetGlobalRequired("tvm_sched.cores")(document.threads).cast<int>();
}

class KernelModule final : public ffi::ModuleObj {
 public:
  explicit KernelModule(std::string json) : json_(std::move(json)) {
    Document document = ReadDocument(json_);
    const int cores = CoresOf(document);
    for (auto& [name, description] : document.kernels) {
      kernels_.emplace(name,
                       std::make_shared<Kernel>(name, std::move(description), cores, generation_));
    }
  }

  const char* kind() const final { return "tvm_sched_onednn"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::Bytes SaveToBytes() const final { return ffi::Bytes(json_); }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    if (name == "tvm_sched.parameters_changed") {
      return ffi::Function::FromTyped([generation = generation_] { generation->fetch_add(1); });
    }
    const auto found = kernels_.find(name);
    if (found == kernels_.end()) return std::nullopt;
    return ffi::Function::FromPacked([kernel = found->second](ffi::PackedArgs args, ffi::Any*) {
      runtime::TranslateErrors([&] { kernel->Call(args); });
    });
  }

 private:
  std::string json_;
  std::shared_ptr<std::atomic<std::uint64_t>> generation_ =
      std::make_shared<std::atomic<std::uint64_t>>(1);
  std::map<std::string, std::shared_ptr<Kernel>> kernels_;
};

ffi::Module Make(const ffi::String& json) {
  return runtime::TranslateErrors(
      [&] { return ffi::Module(ffi::make_object<KernelModule>(json)); });
}

ffi::Module Load(const ffi::Bytes& bytes) { return Make(ffi::String(bytes.data(), bytes.size())); }

/// For the compiler: of one kernel, in a document of its own.
ffi::String Implementation(const ffi::String& json) {
  return runtime::TranslateErrors([&] {
    const Document document = ReadDocument(json);
    return ffi::String(ImplementationOf(document.kernels.at(0).second, CoresOf(document)));
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tvm_sched.onednn.make_module", Make)
      .def("tvm_sched.onednn.implementation", Implementation)
      .def("tvm_sched.onednn.load_module", Load);
}

}  // namespace tvm_sched::onednn
