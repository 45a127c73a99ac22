// The runtime module of kind "tvm_sched_onednn": kernels by name. Its bytes are their descriptions.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ffi/runtime/errors.h"
#include "kernels/onednn/fastest.h"
#include "kernels/onednn/kernel.h"
#include "kernels/onednn/open_kernel.h"
#include "kernels/onednn/packing.h"
#include "kernels/onednn/value_check.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace ffi = tvm::ffi;

namespace {

/// As runtime::Cores of the library that loaded this one.
int Cores(int wanted, int compiled) {
  return ffi::Function::GetGlobalRequired("tvm_sched.cores")(wanted, compiled).cast<int>();
}

/// One more than the largest number of a value.
std::size_t CountValues(const std::vector<std::pair<std::string, Description>>& kernels) {
  int largest = -1;
  for (const auto& [unused, description] : kernels) {
    for (const Operand& operand : description.operands) largest = std::max(largest, operand.value);
  }
  return static_cast<std::size_t>(largest + 1);
}

class KernelModule final : public ffi::ModuleObj {
 public:
  KernelModule(std::string json, bool loaded) : json_(std::move(json)), loaded_(loaded) {
    Build(/*threads=*/0);
  }

  const char* kind() const final { return "tvm_sched_onednn"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  /// The description, and what was checked here: where it is loaded on such a machine, it needs
  /// not be checked again, nor kernels of open sizes for sizes like their examples.
  ffi::Bytes SaveToBytes() const final {
    if (loaded_) return ffi::Bytes(json_);
    std::set<std::string> checks;
    for (const auto& [unused, kernel] : kernels_) {
      checks.insert(kernel->checks().begin(), kernel->checks().end());
    }
    std::vector<OpenKernel*> open;
    for (const auto& [unused, kernel] : open_) open.push_back(kernel.get());
    threads::LoopOnNewThreads(cores_, static_cast<int>(open.size()),
                              [&](int k) { open[k]->CheckExamples(); });
    for (const OpenKernel* kernel : open) checks.merge(kernel->checks());
    namespace json = tvm::ffi::json;
    json::Object document = json::Parse(json_).cast<json::Object>(), kernels;
    for (const auto& [name, item] : document.at(ffi::String("kernels")).cast<json::Object>()) {
      json::Object kernel = item.cast<json::Object>();
      kernel.erase(ffi::String("examples"));
      kernels.Set(name, kernel);
    }
    document.Set(ffi::String("kernels"), kernels);
    document.Set(ffi::String("checked"), json::Array(checks.begin(), checks.end()));
    return ffi::Bytes(json::Stringify(document));
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    if (name == "tvm_sched.parameters_changed") {
      return ffi::Function::FromTyped([shared = shared_] { shared->generation.fetch_add(1); });
    }
    // The functions keep the module alive.
    auto self = ffi::detail::ObjectUnsafe::ObjectPtrFromUnowned<KernelModule>(this);
    if (name == "tvm_sched.release_parameters") {
      return ffi::Function::FromTyped([self] {
        for (const auto& [unused, kernel] : self->kernels_) kernel->ReleaseParameters();
        for (const auto& [unused, kernel] : self->open_) kernel->ReleaseParameters();
      });
    }
    if (name == "tvm_sched.set_threads") {
      return ffi::Function::FromTyped(
          [self](int threads) { runtime::TranslateErrors([&] { self->Build(threads); }); });
    }
    if (name == "tvm_sched.prepare") {
      return ffi::Function::FromTyped([self](ffi::Map<ffi::String, Inputs> calls) {
        runtime::TranslateErrors([&] { self->Prepare(calls); });
      });
    }
    if (const auto open = open_.find(name); open != open_.end()) {
      return ffi::Function::FromPacked([kernel = open->second](ffi::PackedArgs args, ffi::Any*) {
        runtime::TranslateErrors([&] { kernel->Call(args); });
      });
    }
    const auto found = kernels_.find(name);
    if (found == kernels_.end()) return std::nullopt;
    return ffi::Function::FromPacked([kernel = found->second](ffi::PackedArgs args, ffi::Any*) {
      runtime::TranslateErrors([&] { kernel->Call(args); });
    });
  }

 private:
  using Inputs = ffi::Array<ffi::Optional<ffi::Tensor>>;

  /// Make the kernels for this many threads, 0: as many as the artifact or the environment says.
  /// Functions that were got before keep the former kernels.
  void Build(int threads) {
    Document document = ReadDocument(json_);
    const int cores = Cores(threads, document.threads);
    if (cores == cores_) return;
    TrustChecks(document.checked);
    std::vector<std::pair<std::string, Description>> all = document.kernels;
    for (const auto& [name, open] : document.open) all.emplace_back(name, open.example());
    if (shared_ == nullptr) shared_ = std::make_shared<Kernel::Shared>(CountValues(all));
    const std::vector<bool> needed = BoundsNeeded(all, cores);
    const auto is_needed = [&](const Description& description) {
      const auto value = static_cast<std::size_t>(description.result().value);
      return value < needed.size() && needed[value];
    };
    std::vector<std::shared_ptr<Kernel>> made(document.kernels.size());
    threads::LoopOnNewThreads(cores, static_cast<int>(made.size()), [&](int k) {
      auto& [name, description] = document.kernels[k];
      const bool bounds = is_needed(description);
      made[k] = std::make_shared<Kernel>(name, std::move(description), cores, shared_, bounds);
    });
    kernels_.clear();
    open_.clear();
    for (auto& [name, description] : document.open) {
      const bool bounds = is_needed(description.example());
      open_[name] =
          std::make_shared<OpenKernel>(name, std::move(description), cores, shared_, bounds);
    }
    for (std::size_t k = 0; k < made.size(); ++k) {
      kernels_.emplace(std::move(document.kernels[k].first), std::move(made[k]));
    }
    cores_ = cores;
  }

  void Prepare(const ffi::Map<ffi::String, Inputs>& calls) const {
    struct Call {
      Kernel* kernel;
      std::vector<const DLTensor*> inputs;
      std::size_t bytes;  // of parameters
    };
    std::vector<Call> found;
    for (const auto& [name, inputs] : calls) {
      const auto kernel = kernels_.find(name);
      if (kernel == kernels_.end()) continue;
      Call call{kernel->second.get(), {}, 0};
      for (const ffi::Optional<ffi::Tensor>& input : inputs) {
        call.inputs.push_back(input ? input.value().GetDLTensorPtr() : nullptr);
        if (input) call.bytes += ffi::GetDataSize(*call.inputs.back());
      }
      found.push_back(std::move(call));
    }
    // The largest first, so that none of them is begun last.
    std::sort(found.begin(), found.end(),
              [](const Call& a, const Call& b) { return a.bytes > b.bytes; });
    threads::LoopOnNewThreads(cores_, static_cast<int>(found.size()),
                              [&](int k) { found[k].kernel->Prepare(found[k].inputs); });
  }

  std::string json_;
  bool loaded_;  // rather than made by the compiler
  int cores_ = 0;
  std::shared_ptr<Kernel::Shared> shared_;
  std::map<std::string, std::shared_ptr<Kernel>> kernels_;
  std::map<std::string, std::shared_ptr<OpenKernel>> open_;
};

ffi::Module Make(const ffi::String& json) {
  return runtime::TranslateErrors(
      [&] { return ffi::Module(ffi::make_object<KernelModule>(json, /*loaded=*/false)); });
}

ffi::Module Load(const ffi::Bytes& bytes) {
  return runtime::TranslateErrors([&] {
    return ffi::Module(
        ffi::make_object<KernelModule>(std::string(bytes.data(), bytes.size()), /*loaded=*/true));
  });
}

/// For tests: of one kernel, all optimised implementations that may be used; our own name where it
/// is a kernel of ours.
ffi::Array<ffi::String> Implementations(const ffi::String& json) {
  return runtime::TranslateErrors([&] {
    const Document document = ReadDocument(json);
    const int cores = Cores(document.threads, 0);
    ffi::Array<ffi::String> found;
    for (const std::string& name : AllImplementations(document.kernels.at(0).second, cores)) {
      found.push_back(name);
    }
    return found;
  });
}

/// For `tvm-sched doctor`: a sentence for each implementation that computed wrong values here.
ffi::Array<ffi::String> ListWrong() {
  ffi::Array<ffi::String> found;
  for (const std::string& sentence : FoundWrong()) found.push_back(sentence);
  return found;
}

/// For the compiler: of one kernel, in a document of its own.
ffi::String Implementation(const ffi::String& json) {
  return runtime::TranslateErrors([&] {
    const Document document = ReadDocument(json);
    return ffi::String(ImplementationOf(document.kernels.at(0).second, Cores(document.threads, 0)));
  });
}

/// For the compiler: of each kernel of a document, in order.
ffi::Array<ffi::String> FastestImplementations(const ffi::String& json) {
  return runtime::TranslateErrors([&] {
    const Document document = ReadDocument(json);
    const int cores = Cores(document.threads, 0);
    ffi::Array<ffi::String> found;
    for (const auto& [name, description] : document.kernels) {
      found.push_back(FastestImplementation(description, cores));
    }
    return found;
  });
}

/// For the compiler: of one kernel, in a document of its own, the layout of each operand that can
/// be laid out now; empty for the others.
ffi::Array<ffi::String> Layouts(const ffi::String& json) {
  return runtime::TranslateErrors([&] {
    const Document document = ReadDocument(json);
    ffi::Array<ffi::String> layouts;
    for (const std::string& layout :
         PackedLayouts(document.kernels.at(0).second, Cores(document.threads, 0))) {
      layouts.push_back(layout);
    }
    return layouts;
  });
}

/// For the compiler: elements of an operand of that kernel in a layout, with its padding.
std::int64_t CountPackedElements(const ffi::String& json, int operand, const ffi::String& layout) {
  return runtime::TranslateErrors([&] {
    const Document document = ReadDocument(json);
    const auto& operands = document.kernels.at(0).second.operands;
    return PackedElements(operands.at(static_cast<std::size_t>(operand)), layout);
  });
}

/// For the compiler: lay out the value of an operand of that kernel, into a tensor of so many
/// elements.
void PackOperand(const ffi::String& json, int operand, const ffi::String& layout,
                 const ffi::Tensor& from, const ffi::Tensor& to) {
  runtime::TranslateErrors([&] {
    const Document document = ReadDocument(json);
    Pack(document.kernels.at(0).second.operands.at(static_cast<std::size_t>(operand)), layout,
         from.data_ptr(), to.data_ptr());
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tvm_sched.onednn.make_module", Make)
      .def("tvm_sched.onednn.implementation", Implementation)
      .def("tvm_sched.onednn.implementations", Implementations)
      .def("tvm_sched.onednn.fastest_implementations", FastestImplementations)
      .def("tvm_sched.onednn.layouts", Layouts)
      .def("tvm_sched.onednn.packed_elements", CountPackedElements)
      .def("tvm_sched.onednn.pack", PackOperand)
      .def("tvm_sched.onednn.found_wrong", ListWrong)
      .def("tvm_sched.onednn.checks_run", [] { return CountChecks(); })
      .def("tvm_sched.onednn.load_module", Load);
}

}  // namespace tvm_sched::onednn
