// The runtime module of kind "tvm_sched_nvidia": functions that cuBLASLt and cuDNN compute. Its
// bytes are their descriptions.
#include "kernels/cuda/library_kernel.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstring>
#include <string_view>

#include "ffi/runtime/bound_plan.h"
#include "ffi/runtime/errors.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/nvidia_libraries.h"
#include "kernels/cuda/value_check.h"
#include "runtime/cuda/stream_ends.h"

namespace tvm_sched::cuda_kernels {

namespace ffi = tvm::ffi;
using runtime::JsonCursor;

namespace {

constexpr std::int64_t kCallVersion = 3;

Activation ReadActivation(const JsonCursor& item) {
  return static_cast<Activation>(item.Field("activation").Word({"", "relu", "gelu_tanh"}));
}

std::vector<int> ReadIntegers(const JsonCursor& list) {
  std::vector<int> result;
  for (const JsonCursor& item : list.Items()) {
    result.push_back(static_cast<int>(item.Int(0, (1LL << 31) - 1)));
  }
  return result;
}

MatrixDescription ReadMatrix(const JsonCursor& item) {
  item.AllowFields({"transposed", "stride", "batch_stride"});
  constexpr std::int64_t kLargest = 1LL << 40;
  return {item.Field("transposed").Bool(), item.Field("stride").Int(1, kLargest),
          item.Field("batch_stride").Int(0, kLargest)};
}

MatmulDescription ReadMatmul(const JsonCursor& item) {
  item.AllowFields({"kind", "dtype", "result_dtype", "tf32", "batch", "m", "n", "k", "a", "b",
                    "bias", "activation"});
  constexpr std::int64_t kLargest = 1LL << 31;
  return {item.Field("dtype").Name(),
          item.Field("result_dtype").Name(),
          item.Field("tf32").Bool(),
          item.Field("batch").Int(1, kLargest),
          item.Field("m").Int(1, kLargest),
          item.Field("n").Int(1, kLargest),
          item.Field("k").Int(1, kLargest),
          ReadMatrix(item.Field("a")),
          ReadMatrix(item.Field("b")),
          item.Field("bias").Bool(),
          ReadActivation(item)};
}

}  // namespace

ConvolutionDescription ReadConvolution(const JsonCursor& item) {
  item.AllowFields({"kind", "dtype", "tf32", "layout", "input", "weights", "output", "padding",
                    "strides", "dilation", "groups", "residual", "bias", "activation"});
  return {item.Field("dtype").Name(),
          item.Field("tf32").Bool(),
          item.Field("layout").Word({"NCHW", "NHWC"}) == 1,
          ReadIntegers(item.Field("input")),
          ReadIntegers(item.Field("weights")),
          ReadIntegers(item.Field("output")),
          ReadIntegers(item.Field("padding")),
          ReadIntegers(item.Field("strides")),
          ReadIntegers(item.Field("dilation")),
          static_cast<int>(item.Field("groups").Int(1, 1 << 30)),
          item.Field("residual").Bool(),
          item.Field("bias").Bool(),
          ReadActivation(item)};
}

LibraryKernel::LibraryKernel(std::string name, const JsonCursor& item) : name_(std::move(name)) {
  tensors_ += item.Field("bias").Bool() ? 1 : 0;
  if (item.Field("kind").Word({"matmul", "conv2d"}) == 1) {
    tensors_ += item.Field("residual").Bool() ? 1 : 0;
  }
  if (item.Field("kind").Word({"matmul", "conv2d"}) == 0) {
    prepare_ = [this, found = ReadMatmul(item)](Stream) { return PrepareMatmul(found, name_); };
  } else {
    prepare_ = [this, found = ReadConvolution(item)](Stream stream) {
      return PrepareConvolution(found, name_, stream);
    };
  }
}

void LibraryKernel::Call(ffi::PackedArgs args) {
  const CallOnGpu call(name_, tensors_, args);
  For(call).Run(call.data, call.stream);
}

void LibraryKernel::MakeReady(ffi::PackedArgs args) { For(CallOnGpu(name_, tensors_, args)); }

Prepared& LibraryKernel::For(const CallOnGpu& call) {
  const std::lock_guard lock(mutex_);
  const Key key{call.context, call.stream};
  std::unique_ptr<Prepared>& prepared = prepared_[key];
  if (!prepared) {
    prepared = prepare_(call.stream);
    runtime::cuda::AtEndOfStream(call.stream, [weak = weak_from_this(), key] {
      if (const auto self = weak.lock()) self->Forget(key);
    });
  }
  return *prepared;
}

void LibraryKernel::Forget(const Key& key) {
  const std::lock_guard lock(mutex_);
  prepared_.erase(key);
}

namespace {

class LibraryModule final : public ffi::ModuleObj {
 public:
  explicit LibraryModule(std::string json) : json_(std::move(json)) {
    const JsonCursor document = JsonCursor::Parse(json_, "NVIDIA kernels");
    document.AllowFields({"version", "kernels"});
    const JsonCursor version = document.Field("version");
    if (version.NonNegative() > kCallVersion) {
      version.Unexpected("at most " + std::to_string(kCallVersion) +
                         ": the artifact was written by a newer tvm_sched than this library");
    }
    if (version.NonNegative() < kCallVersion) {
      version.Unexpected(std::to_string(kCallVersion) +
                         ": the artifact was written by an older tvm_sched; compile it again");
    }
    for (const auto& [name, item] : document.Field("kernels").Fields()) {
      kernels_[name] = std::make_shared<LibraryKernel>(name, item);
    }
  }

  const char* kind() const final { return "tvm_sched_nvidia"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::Bytes SaveToBytes() const final { return ffi::Bytes(json_); }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const std::string_view text(name.data(), name.size());
    const bool prepares = text.starts_with(runtime::kPrepareKernel);
    const bool warms_up = text.starts_with(runtime::kWarmUpKernel);
    const std::size_t prefix = prepares   ? std::strlen(runtime::kPrepareKernel)
                               : warms_up ? std::strlen(runtime::kWarmUpKernel)
                                          : 0;
    const auto found = kernels_.find(std::string(text.substr(prefix)));
    if (found == kernels_.end()) return std::nullopt;
    if (prepares) {
      return ffi::Function::FromPacked([kernel = found->second](ffi::PackedArgs args, ffi::Any*) {
        runtime::TranslateErrors([&] { kernel->MakeReady(args); });
      });
    }
    return ffi::Function::FromPacked([kernel = found->second](ffi::PackedArgs args, ffi::Any*) {
      runtime::TranslateErrors([&] { kernel->Call(args); });
    });
  }

 private:
  std::string json_;
  std::map<std::string, std::shared_ptr<LibraryKernel>> kernels_;
};

ffi::Module Make(const ffi::String& json) {
  return runtime::TranslateErrors(
      [&] { return ffi::Module(ffi::make_object<LibraryModule>(json)); });
}

ffi::Module Load(const ffi::Bytes& bytes) { return Make(ffi::String(bytes.data(), bytes.size())); }

/// Plans of cuDNN for a kernel's description and a GPU's properties (JSON each), as text: a
/// convolution of this module, or attention as `ReadAttention` reads it. Needs no GPU.
ffi::Array<ffi::String> CompileKernelPlans(const ffi::String& description,
                                           const ffi::String& properties) {
  return runtime::TranslateErrors([&] {
    const JsonCursor item = JsonCursor::Parse(description, "kernel");
    std::vector<std::string> texts;
    try {
      texts = item.OptionalField("kind") ? CompileConvolution(ReadConvolution(item), properties)
                                         : CompileAttention(ReadAttention(item), properties);
    } catch (const CudnnRefusal&) {
      // cuDNN is too old for it.
    }
    ffi::Array<ffi::String> result;
    for (const std::string& text : texts) result.push_back(text);
    return result;
  });
}

/// cuDNN's version as it counts, such as 91900; 0 where it is missing.
std::int64_t FindCudnnVersion() { return static_cast<std::int64_t>(CudnnVersion()); }

/// A GPU's properties as cuDNN writes them.
ffi::String DeviceProperties(std::int64_t device) {
  return runtime::TranslateErrors(
      [&] { return ffi::String(CudnnDeviceProperties(static_cast<int>(device))); });
}

/// For tests: the numbers of each input that a kernel of this description is checked with, then the
/// elements of the result and their values. Needs no GPU.
ffi::Array<ffi::Array<double>> CheckedNumbers(const ffi::String& description) {
  return runtime::TranslateErrors([&] {
    const JsonCursor item = JsonCursor::Parse(description, "kernel");
    const PlainKernel plain = !item.OptionalField("kind") ? PlainKernelOf(ReadAttention(item))
                              : item.Field("kind").Word({"matmul", "conv2d"}) == 0
                                  ? PlainKernelOf(ReadMatmul(item))
                                  : PlainKernelOf(ReadConvolution(item));
    ffi::Array<ffi::Array<double>> result;
    for (const PlainKernel::Tensor& tensor : plain.tensors) {
      if (&tensor == &plain.tensors.back()) break;
      ffi::Array<double> numbers;
      for (std::int64_t k = 0; k < tensor.elements; ++k) numbers.push_back(tensor.Number(k));
      result.push_back(numbers);
    }
    ffi::Array<double> elements, values;
    for (const PlainKernel::Value& each : plain.Sample()) {
      elements.push_back(static_cast<double>(each.element));
      values.push_back(each.value);
    }
    result.push_back(elements);
    result.push_back(values);
    return result;
  });
}

/// For `tvm-sched doctor`: a sentence for each algorithm of which values were wrong here.
ffi::Array<ffi::String> ListWrong() {
  return runtime::TranslateErrors([] {
    ffi::Array<ffi::String> found;
    for (const std::string& sentence : FoundWrong()) found.push_back(sentence);
    return found;
  });
}

/// Why the libraries cannot be used here; empty where they can.
ffi::String WhyNot() {
  try {
    CublasLt();
    Cudnn();
    return "";
  } catch (const ffi::Error& error) {
    return error.message();
  }
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tvm_sched.make_nvidia_module", Make)
      .def("tvm_sched.nvidia_found_wrong", ListWrong)
      .def("tvm_sched.nvidia_checks_run", CountChecks)
      .def("tvm_sched.nvidia_checked_numbers", CheckedNumbers)
      .def("tvm_sched.why_not_nvidia", WhyNot)
      .def("tvm_sched.cudnn_version", FindCudnnVersion)
      .def("tvm_sched.cudnn_plans", CompileKernelPlans)
      .def("tvm_sched.cudnn_device_properties", DeviceProperties)
      .def("ffi.Module.load_from_bytes.tvm_sched_nvidia", Load);
}

}  // namespace tvm_sched::cuda_kernels
