// The runtime module of kind "tvm_sched_language": kernels by name. Its bytes are their
// descriptions, docs/formats/language_model.md.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <memory>
#include <string>

#include "ffi/kernel_libraries.h"
#include "ffi/runtime/errors.h"
#include "kernels/language/kernels.h"
#include "runtime/kernel_threads.h"

namespace tvm_sched::language {

namespace ffi = tvm::ffi;
using runtime::JsonCursor;

int Threads() { return std::max(1, runtime::KernelThreads::Current()); }

void Loop(int count, threads::Callback<int> body) {
  const int threads = Threads();
  const runtime::PoolLoop loop = threads > 1 && count > 1 ? runtime::FindPoolLoop() : nullptr;
  if (loop != nullptr) {
    loop(threads, count, body);
    return;
  }
  for (int k = 0; k < count; ++k) body(k);
}

namespace {

// Version 2: bfloat16 weights lie in pairs of terms. Version 3: products with packed blocks.
// Version 4: sums and concatenations of the parts of tensor parallelism.
constexpr std::int64_t kVersion = 4, kBfloat16Pairs = 2;

Kernel MakeKernel(const JsonCursor& about) {
  constexpr Kernel (*kMakers[])(const JsonCursor&) = {
      MakeEmbedding, MakeNorm, MakeLinear, MakeExperts, MakeGate, MakeStore,
      MakeAttention, MakeRows, MakePacked, MakeAdd,     MakeJoin};
  return kMakers[about.Field("kind").Word({"embedding", "norm", "linear", "experts", "gate",
                                           "store", "attention", "rows", "packed", "add", "join"})](
      about);
}

class KernelModule final : public ffi::ModuleObj {
 public:
  explicit KernelModule(std::string json) : json_(std::move(json)) {
    const JsonCursor document = JsonCursor::Parse(json_, "$");
    document.AllowFields({"version", "kernels"});
    const JsonCursor version = document.Field("version");
    const std::int64_t known = version.Int(1, std::numeric_limits<std::int64_t>::max());
    if (known > kVersion) {
      version.Unexpected("at most " + std::to_string(kVersion) +
                         ": the kernels were described by a newer tvm_sched than the one that "
                         "reads them");
    }
    if (known < kBfloat16Pairs && json_.find("\"bfloat16\"") != std::string::npos) {
      version.Unexpected(
          std::to_string(kBfloat16Pairs) +
          ": the bfloat16 weights of older artifacts have another order; compile the "
          "model again");
    }
    for (const auto& [name, about] : document.Field("kernels").Fields()) {
      kernels_.emplace(name, std::make_shared<const Kernel>(MakeKernel(about)));
    }
  }

  const char* kind() const final { return "tvm_sched_language"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::Bytes SaveToBytes() const final { return ffi::Bytes(json_); }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const auto found = kernels_.find(name);
    if (found == kernels_.end()) return std::nullopt;
    return ffi::Function::FromPacked([kernel = found->second](ffi::PackedArgs args, ffi::Any*) {
      runtime::TranslateErrors([&] {
        Tensors tensors;
        for (int k = 0; k < args.size(); ++k) {
          const auto tensor = args[k].as<ffi::Tensor>();
          tensors.push_back(tensor ? tensor->GetDLTensorPtr() : args[k].cast<DLTensor*>());
        }
        (*kernel)(tensors);
      });
    });
  }

 private:
  std::string json_;
  std::map<std::string, std::shared_ptr<const Kernel>> kernels_;
};

ffi::Module Make(const ffi::String& json) {
  return runtime::TranslateErrors(
      [&] { return ffi::Module(ffi::make_object<KernelModule>(json)); });
}

ffi::Module Load(const ffi::Bytes& bytes) { return Make(ffi::String(bytes.data(), bytes.size())); }

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tvm_sched.make_language_module", Make)
      .def("tvm_sched.language_integers", [] { return ffi::String(IntegerVersion()); })
      .def("ffi.Module.load_from_bytes.tvm_sched_language", Load);
}

}  // namespace tvm_sched::language
