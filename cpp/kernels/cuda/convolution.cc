// Convolutions by cuDNN.
#include <tvm/ffi/error.h>

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/library_kernel.h"
#include "runtime/cuda/handles.h"
#include "runtime/cuda/stream_ends.h"

namespace tvm_sched::cuda_kernels {

using runtime::cuda::Check;
using runtime::cuda::Driver;

namespace {

constexpr double kClearly = 0.95;  // of the time of another algorithm: what is taken for faster

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

/// Of what an algorithm is chosen for.
std::vector<int> KeyOf(const ConvolutionDescription& d) {
  std::vector<int> key{DataType(d.dtype), d.tf32, d.groups, d.bias, static_cast<int>(d.activation)};
  for (const auto* part : {&d.input, &d.weights, &d.output, &d.padding, &d.strides, &d.dilation}) {
    key.insert(key.end(), part->begin(), part->end());
  }
  return key;
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
        is_product_(d.weights.at(2) == 1 && d.weights.at(3) == 1 && !d.tf32),
        key_(KeyOf(d)) {}

  void Run(const std::vector<void*>& data, Stream stream) override {
    void* handle = HandleOfStream(stream);
    if (!ready_) Choose(handle, data, stream);
    CheckStatus(Execute(handle, data), "cuDNN failed in the kernel \"" + name_ + "\"");
  }

 private:
  int Execute(void* handle, const std::vector<void*>& data) const {
    const float one = 1, zero = 0;
    if (!fused_) {
      return Cudnn().Convolution(handle, &one, input_, data[0], weights_, data[1], operation_,
                                 algorithm_, workspace_.get(), size_, &zero, output_, data.back());
    }
    return Cudnn().ConvolutionBiasActivation(
        handle, &one, input_, data[0], weights_, data[1], operation_, algorithm_, workspace_.get(),
        size_, &zero, output_, data.back(), bias_, data[2], activation_, output_, data.back());
  }

  /// Whether this algorithm can be taken; it is from now on.
  bool Take(void* handle, int algorithm) {
    algorithm_ = algorithm;
    const int status = Cudnn().ConvolutionWorkspace(handle, input_, weights_, operation_, output_,
                                                    algorithm_, &size_);
    if (status != 0 || size_ > LargestWorkspace()) return false;
    workspace_ = size_ > 0 ? AllocateWorkspace(size_, name_) : nullptr;
    return true;
  }

  /// Those that may be taken, the one that is by rule the best first; some of them twice.
  std::vector<int> Algorithms(void* handle) const {
    // All that it computes with a bias and no activation.
    if (only_gemm_) return {kImplicitPrecompGemm};
    std::array<ConvolutionAlgorithm, 8> known{};
    int found = 0;
    CheckStatus(Cudnn().ConvolutionChoose(handle, input_, weights_, operation_, output_,
                                          static_cast<int>(known.size()), &found, known.data()),
                "cuDNN has no algorithm for the kernel \"" + name_ + "\"");
    // Of 1 x 1 it often chooses one that copies tensors first.
    std::vector<int> result;
    if (is_product_) result.push_back(kImplicitGemm);
    for (int k = 0; k < found; ++k) {
      if (known[k].status == 0) result.push_back(known[k].algorithm);
    }
    result.insert(result.end(), {kImplicitPrecompGemm, kImplicitGemm});
    return result;
  }

  /// The first call tries all that there are on its data: cuDNN's own choice is by rules, and what
  /// is best depends on the GPU. All calls in this process take the same, for their values to be
  /// the same.
  void Choose(void* handle, const std::vector<void*>& data, Stream stream) {
    static std::mutex mutex;
    static std::map<std::vector<int>, int> choices;
    const std::lock_guard lock(mutex);
    const auto known = choices.find(key_);
    if (known != choices.end() && Take(handle, known->second)) {
      ready_ = true;
      return;
    }
    std::optional<int> best;
    double least = 0;
    std::vector<int> algorithms = Algorithms(handle);
    int capturing = runtime::cuda::kCaptureNone;
    Check(Driver().StreamIsCapturing(stream, &capturing), name_);
    // Nothing can be timed then: the first by rule that can be taken.
    if (capturing != runtime::cuda::kCaptureNone) {
      std::erase_if(algorithms, [&](int algorithm) { return !Take(handle, algorithm); });
      algorithms.resize(std::min<std::size_t>(algorithms.size(), 1));
    }
    for (const int algorithm : algorithms) {
      if (algorithm == best || !Take(handle, algorithm)) continue;
      const double time = algorithms.size() == 1 ? 0 : TimeOf(handle, data, stream);
      if (time < 0 || (best && time >= kClearly * least)) continue;
      best = algorithm;
      least = time;
    }
    if (!best || !Take(handle, *best)) {
      TVM_FFI_THROW(RuntimeError) << "cuDNN has no algorithm for the kernel \"" << name_ << "\"";
    }
    choices[key_] = *best;
    ready_ = true;
  }

  /// Milliseconds of a call, negative where it is not computed so: several between two events, the
  /// least of a few. They are one captured graph, so that the host's part of a launch does not
  /// count, unless capture is refused.
  double TimeOf(void* handle, const std::vector<void*>& data, Stream stream) const {
    constexpr int kRounds = 3, kCalls = 10;
    if (Execute(handle, data) != 0) return -1;  // what is made at a first call cannot be captured
    Check(Driver().StreamSynchronize(stream), name_);
    const runtime::cuda::GraphExecHandle graph = Capture(handle, data, stream, kCalls);
    const auto begin = runtime::cuda::MakeEvent(runtime::cuda::kEventDefault);
    const auto end = runtime::cuda::MakeEvent(runtime::cuda::kEventDefault);
    double least = -1;
    for (int round = 0; round <= kRounds; ++round) {  // the first only warms up
      Check(Driver().EventRecord(begin.get(), stream), name_);
      if (graph.get() != nullptr) {
        Check(Driver().GraphLaunch(graph.get(), stream), name_);
      } else if (!ExecuteAll(handle, data, kCalls)) {
        return -1;
      }
      Check(Driver().EventRecord(end.get(), stream), name_);
      Check(Driver().StreamSynchronize(stream), name_);
      float time = 0;
      Check(Driver().EventElapsedTime(&time, begin.get(), end.get()), name_);
      if (round == 1 || (round > 1 && time < least)) least = time;
    }
    return least / kCalls;
  }

  bool ExecuteAll(void* handle, const std::vector<void*>& data, int calls) const {
    for (int k = 0; k < calls; ++k) {
      if (Execute(handle, data) != 0) return false;
    }
    return true;
  }

  /// A graph of some calls; none where cuDNN or the driver refuses it, as it does for the legacy
  /// default stream.
  runtime::cuda::GraphExecHandle Capture(void* handle, const std::vector<void*>& data,
                                         Stream stream, int calls) const {
    if (Driver().StreamBeginCapture(stream, runtime::cuda::kCaptureRelaxed) !=
        runtime::cuda::kSuccess) {
      return {};
    }
    const bool executed = ExecuteAll(handle, data, calls);
    runtime::cuda::Graph captured = nullptr;
    const bool ended = Driver().StreamEndCapture(stream, &captured) == runtime::cuda::kSuccess;
    const runtime::cuda::GraphHandle graph(captured);
    runtime::cuda::GraphExec made = nullptr;
    if (!executed || !ended ||
        Driver().GraphInstantiate(&made, captured, 0) != runtime::cuda::kSuccess) {
      return {};
    }
    return runtime::cuda::GraphExecHandle(made);
  }

  bool fused_, ready_ = false;
  std::string name_;
  void *input_, *weights_, *output_, *bias_, *operation_, *activation_;
  bool only_gemm_, is_product_;
  std::vector<int> key_;
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
