// Convolutions by cuDNN.
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/library_kernel.h"
#include "runtime/cuda/stream_ends.h"

namespace tvm_sched::cuda_kernels {

namespace {

int DataType(const std::string& dtype) {
  return dtype == "float16" ? kCudnnHalf : dtype == "bfloat16" ? kCudnnBfloat16 : kCudnnFloat;
}

/// A handle belongs to a context and works on one stream at a time, so each kernel that is made
/// ready for a stream shares the handle of that stream.
void* HandleOfStream(Stream stream) {
  static std::mutex mutex;
  static std::map<std::pair<runtime::cuda::Context, Stream>, void*> handles;
  runtime::cuda::Context context = nullptr;
  runtime::cuda::Check(runtime::cuda::Driver().ContextGetCurrent(&context), "no context");
  const std::lock_guard lock(mutex);
  void*& handle = handles[{context, stream}];
  if (handle == nullptr) {
    CheckStatus(Cudnn().Create(&handle), "cuDNN cannot be initialised");
    runtime::cuda::AtEndOfStream(stream, [key = std::pair(context, stream)] {
      const std::lock_guard inner(mutex);
      if (auto node = handles.extract(key)) Cudnn().Destroy(node.mapped());
    });
  }
  CheckStatus(Cudnn().SetStream(handle, stream), "cuDNN takes no stream");
  return handle;
}

/// Descriptors live as long as the process: there are a few for each kernel and stream.
void* Tensor(const std::vector<int>& extents, int dtype) {
  void* made = nullptr;
  CheckStatus(Cudnn().TensorCreate(&made), "a tensor of cuDNN");
  CheckStatus(Cudnn().TensorSet(made, kCudnnNchw, dtype, extents.at(0), extents.at(1),
                                extents.at(2), extents.at(3)),
              "a tensor of cuDNN");
  return made;
}

void* Filter(const std::vector<int>& extents, int dtype) {
  void* made = nullptr;
  CheckStatus(Cudnn().FilterCreate(&made), "a filter of cuDNN");
  CheckStatus(Cudnn().FilterSet(made, dtype, kCudnnNchw, extents.at(0), extents.at(1),
                                extents.at(2), extents.at(3)),
              "a filter of cuDNN");
  return made;
}

void* Operation(const ConvolutionDescription& d) {
  void* made = nullptr;
  CheckStatus(Cudnn().ConvolutionCreate(&made), "a convolution of cuDNN");
  CheckStatus(Cudnn().ConvolutionSet(made, d.padding.at(0), d.padding.at(1), d.strides.at(0),
                                     d.strides.at(1), d.dilation.at(0), d.dilation.at(1),
                                     kCrossCorrelation, kCudnnFloat),
              "a convolution of cuDNN");
  CheckStatus(Cudnn().ConvolutionSetGroups(made, d.groups), "groups of a convolution");
  // float32 in full precision: the default may round to TF32. Half precision on tensor cores: by
  // default cuDNN 9.19 converts grouped convolutions to float32 (235 us for 77 us on an H100).
  const int math = d.dtype != "float32" ? kTensorOpMath : d.tf32 ? kDefaultMath : kFmaMath;
  CheckStatus(Cudnn().ConvolutionSetMath(made, math), "the precision of a convolution");
  return made;
}

void* ActivationOf(Activation activation) {
  void* made = nullptr;
  CheckStatus(Cudnn().ActivationCreate(&made), "an activation of cuDNN");
  const int mode = activation == Activation::kRelu ? kActivationRelu : kActivationIdentity;
  CheckStatus(Cudnn().ActivationSet(made, mode, 0, 0), "an activation of cuDNN");
  return made;
}

class Convolution final : public Prepared {
 public:
  Convolution(const ConvolutionDescription& d, const std::string& name)
      : fused_(d.bias),
        name_(name),
        input_(Tensor(d.input, DataType(d.dtype))),
        weights_(Filter(d.weights, DataType(d.dtype))),
        output_(Tensor(d.output, DataType(d.dtype))),
        bias_(d.bias ? Tensor({1, d.output.at(1), 1, 1}, DataType(d.dtype)) : nullptr),
        operation_(Operation(d)),
        activation_(d.bias ? ActivationOf(d.activation) : nullptr),
        only_gemm_(d.bias && d.activation == Activation::kNone),
        is_product_(d.weights.at(2) == 1 && d.weights.at(3) == 1 && !d.tf32) {}

  void Run(const std::vector<void*>& data, Stream stream) override {
    void* handle = HandleOfStream(stream);
    if (!ready_) Choose(handle);
    const float one = 1, zero = 0;
    const std::string what = "cuDNN failed in the kernel \"" + name_ + "\"";
    if (!fused_) {
      CheckStatus(
          Cudnn().Convolution(handle, &one, input_, data[0], weights_, data[1], operation_,
                              algorithm_, workspace_.get(), size_, &zero, output_, data.back()),
          what);
      return;
    }
    CheckStatus(Cudnn().ConvolutionBiasActivation(handle, &one, input_, data[0], weights_, data[1],
                                                  operation_, algorithm_, workspace_.get(), size_,
                                                  &zero, output_, data.back(), bias_, data[2],
                                                  activation_, output_, data.back()),
                what);
  }

 private:
  void Choose(void* handle) {
    algorithm_ = kImplicitPrecompGemm;
    if (is_product_ && !only_gemm_) {
      // cuDNN's choice for 1 x 1 copies tensors first: 3 times as long on an H100 in half
      // precision.
      algorithm_ = kImplicitGemm;
    } else if (!only_gemm_) {
      ConvolutionAlgorithm best{};
      int found = 0;
      CheckStatus(Cudnn().ConvolutionChoose(handle, input_, weights_, operation_, output_, 1,
                                            &found, &best),
                  "cuDNN has no algorithm for the kernel \"" + name_ + "\"");
      if (found > 0 && best.status == 0) algorithm_ = best.algorithm;
    }
    CheckStatus(Cudnn().ConvolutionWorkspace(handle, input_, weights_, operation_, output_,
                                             algorithm_, &size_),
                "cuDNN has no workspace for the kernel \"" + name_ + "\"");
    if (size_ > 0) workspace_ = AllocateWorkspace(size_, name_);
    ready_ = true;
  }

  bool fused_, ready_ = false;
  std::string name_;
  void *input_, *weights_, *output_, *bias_, *operation_, *activation_;
  bool only_gemm_, is_product_;
  int algorithm_ = 0;
  std::size_t size_ = 0;
  std::shared_ptr<std::byte> workspace_;
};

}  // namespace

std::unique_ptr<Prepared> PrepareConvolution(const ConvolutionDescription& description,
                                             const std::string& name) {
  return std::make_unique<Convolution>(description, name);
}

}  // namespace tvm_sched::cuda_kernels
