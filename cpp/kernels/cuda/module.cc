// The runtime module of kind "tvm_sched_cuda": functions over a fat binary. Its bytes are 8 of the
// description's length (little endian), the description (JSON), and the binary.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "ffi/runtime/bound_plan.h"
#include "ffi/runtime/errors.h"
#include "kernels/cuda/image.h"
#include "runtime/throw.h"

namespace tvm_sched::cuda_kernels {

namespace ffi = tvm::ffi;

namespace {

class ImageModule final : public ffi::ModuleObj {
 public:
  ImageModule(std::string json, std::string binary)
      : json_(std::move(json)), image_(std::make_shared<Image>(std::move(binary))) {
    for (auto& [name, description] : ReadFunctions(json_)) {
      functions_[name] = std::make_shared<ImageFunction>(name, std::move(description), image_);
    }
  }

  const char* kind() const final { return "tvm_sched_cuda"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }

  ffi::Bytes SaveToBytes() const final {
    std::string bytes(sizeof(std::uint64_t), '\0');
    const std::uint64_t length = json_.size();
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(length >> (8 * i));
    return ffi::Bytes(bytes + json_ + image_->bytes());
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const std::string_view text(name.data(), name.size());
    const bool prepares = text.starts_with(runtime::kPrepareKernel);
    const bool warms_up = text.starts_with(runtime::kWarmUpKernel);
    const std::size_t prefix = prepares   ? std::strlen(runtime::kPrepareKernel)
                               : warms_up ? std::strlen(runtime::kWarmUpKernel)
                                          : 0;
    const auto found = functions_.find(std::string(text.substr(prefix)));
    if (found == functions_.end()) return std::nullopt;
    if (warms_up && !found->second->Chooses()) return std::nullopt;
    if (prepares) {
      return ffi::Function::FromPacked([function = found->second](ffi::PackedArgs args, ffi::Any*) {
        runtime::TranslateErrors([&] { function->MakeReady(args); });
      });
    }
    return ffi::Function::FromPacked([function = found->second](ffi::PackedArgs args, ffi::Any*) {
      runtime::TranslateErrors([&] { function->Call(args); });
    });
  }

 private:
  std::string json_;
  std::shared_ptr<Image> image_;
  std::map<std::string, std::shared_ptr<ImageFunction>> functions_;
};

ffi::Module MakeImage(const ffi::String& json, const ffi::Bytes& binary) {
  return runtime::TranslateErrors([&] {
    return ffi::Module(
        ffi::make_object<ImageModule>(json, std::string(binary.data(), binary.size())));
  });
}

ffi::Module LoadImage(const ffi::Bytes& bytes) {
  std::uint64_t length = 0;
  constexpr std::size_t kPrefix = sizeof(length);
  const bool whole = bytes.size() >= kPrefix;
  for (std::size_t i = 0; whole && i < kPrefix; ++i) {
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes.data()[i])) << (8 * i);
  }
  if (!whole || length > bytes.size() - kPrefix) {
    TVM_SCHED_THROW(ValueError) << "the artifact's CUDA kernels were cut off; copy it again";
  }
  const char* json = bytes.data() + kPrefix;
  return MakeImage(ffi::String(json, length),
                   ffi::Bytes(json + length, bytes.size() - kPrefix - length));
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tvm_sched.make_cuda_module", MakeImage)
      .def("ffi.Module.load_from_bytes.tvm_sched_cuda", LoadImage);
}

}  // namespace tvm_sched::cuda_kernels
