// Convolutions by cuDNN: plans of its graph interface, and the algorithms of its older one.
#include <tvm/ffi/error.h>

#include <algorithm>
#include <array>

#include "kernels/cuda/candidates.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/library_kernel.h"
#include "kernels/cuda/nvidia_libraries.h"
#include "kernels/cuda/value_check.h"

namespace tvm_sched::cuda_kernels {

namespace {

constexpr std::size_t kMostPlans = 4;

int DataType(const std::string& dtype) {
  return dtype == "float16" ? kCudnnHalf : dtype == "bfloat16" ? kCudnnBfloat16 : kCudnnFloat;
}

/// Where the tensors of a call stand among its arguments.
struct Places {
  explicit Places(const ConvolutionDescription& d)
      : bias(d.bias ? 2 : -1),
        residual(d.residual ? 2 + d.bias : -1),
        output(2 + d.bias + d.residual) {}
  int bias, residual, output;
};

/// Descriptors live as long as the process: there are a few for each kernel and stream.
void* Tensor(const std::vector<int>& extents, const ConvolutionDescription& d) {
  void* made = nullptr;
  CheckStatus(Cudnn().TensorCreate(&made), "a tensor of cuDNN");
  CheckStatus(Cudnn().TensorSet(made, d.channels_last ? kCudnnNhwc : kCudnnNchw, DataType(d.dtype),
                                extents.at(0), extents.at(1), extents.at(2), extents.at(3)),
              "a tensor of cuDNN");
  return made;
}

void* Filter(const std::vector<int>& extents, const ConvolutionDescription& d) {
  void* made = nullptr;
  CheckStatus(Cudnn().FilterCreate(&made), "a filter of cuDNN");
  CheckStatus(Cudnn().FilterSet(made, DataType(d.dtype), d.channels_last ? kCudnnNhwc : kCudnnNchw,
                                extents.at(0), extents.at(1), extents.at(2), extents.at(3)),
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

/// What cuDNN's older interface is given.
struct Descriptors {
  explicit Descriptors(const ConvolutionDescription& d)
      : input(Tensor(d.input, d)),
        weights(Filter(d.weights, d)),
        output(Tensor(d.output, d)),
        bias(d.bias ? Tensor({1, d.output.at(1), 1, 1}, d) : nullptr),
        operation(Operation(d)),
        activation(d.bias ? ActivationOf(d.activation) : nullptr),
        places(d) {}
  void *input, *weights, *output, *bias, *operation, *activation;
  Places places;
};

class Algorithm final : public Candidate {
 public:
  Algorithm(std::shared_ptr<Descriptors> descriptors, int algorithm, std::size_t workspace)
      : d_(std::move(descriptors)), algorithm_(algorithm), workspace_(workspace) {}

  std::string label() const override { return "cuDNN's algorithm " + std::to_string(algorithm_); }
  std::size_t workspace() const override { return workspace_; }

  bool Run(const std::vector<void*>& data, void* workspace, Stream stream) override {
    void* handle = CudnnHandle(stream);
    const float one = 1, zero = 0;
    void* output = data[d_->places.output];
    if (d_->places.bias < 0) {
      return Cudnn().Convolution(handle, &one, d_->input, data[0], d_->weights, data[1],
                                 d_->operation, algorithm_, workspace, workspace_, &zero,
                                 d_->output, output) == 0;
    }
    const bool residual = d_->places.residual >= 0;
    return Cudnn().ConvolutionBiasActivation(
               handle, &one, d_->input, data[0], d_->weights, data[1], d_->operation, algorithm_,
               workspace, workspace_, residual ? &one : &zero, d_->output,
               residual ? data[d_->places.residual] : output, d_->bias, data[d_->places.bias],
               d_->activation, d_->output, output) == 0;
  }

 private:
  std::shared_ptr<Descriptors> d_;
  int algorithm_;
  std::size_t workspace_;
};

/// Algorithms of the older interface, by cuDNN's rules the best first.
std::vector<std::unique_ptr<Candidate>> Algorithms(const ConvolutionDescription& d, Stream stream) {
  std::vector<std::unique_ptr<Candidate>> candidates;
  if (d.residual && !d.bias) return candidates;
  void* handle = CudnnHandle(stream);
  const auto descriptors = std::make_shared<Descriptors>(d);
  std::vector<int> numbers;
  // All that it computes with a bias and no activation is one algorithm.
  if (!d.bias || d.activation != Activation::kNone) {
    // Of 1 x 1 it often chooses one that copies tensors first.
    if (d.weights.at(2) == 1 && d.weights.at(3) == 1 && !d.tf32) numbers.push_back(kImplicitGemm);
    std::array<ConvolutionAlgorithm, 8> known{};
    int found = 0;
    const int status = Cudnn().ConvolutionChoose(
        handle, descriptors->input, descriptors->weights, descriptors->operation,
        descriptors->output, static_cast<int>(known.size()), &found, known.data());
    for (int k = 0; status == 0 && k < found; ++k) {
      if (known[k].status == 0) numbers.push_back(known[k].algorithm);
    }
    numbers.push_back(kImplicitGemm);
  }
  numbers.push_back(kImplicitPrecompGemm);
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    if (std::find(numbers.begin(), numbers.begin() + k, numbers[k]) != numbers.begin() + k) {
      continue;
    }
    std::size_t size = 0;
    const int status = Cudnn().ConvolutionWorkspace(handle, descriptors->input,
                                                    descriptors->weights, descriptors->operation,
                                                    descriptors->output, numbers[k], &size);
    if (status == 0)
      candidates.push_back(std::make_unique<Algorithm>(descriptors, numbers[k], size));
  }
  return candidates;
}

GraphTensor GraphTensorOf(const std::vector<int>& extents, int type, bool channels_last) {
  const std::int64_t n = extents.at(0), c = extents.at(1), h = extents.at(2), w = extents.at(3);
  GraphTensor tensor{{n, c, h, w}, {c * h * w, h * w, w, 1}, type};
  if (channels_last) tensor.strides = {c * h * w, 1, w * c, c};
  return tensor;
}

std::vector<std::int64_t> Wide(const std::vector<int>& values) {
  return {values.begin(), values.end()};
}

/// The convolution, then the summand, the bias and the activation: cuDNN's own kernels know this
/// order. The steps are float32; the last is rounded.
std::shared_ptr<OperationGraph> GraphOf(const ConvolutionDescription& d) {
  const int type = DataType(d.dtype);
  const Places places(d);
  auto graph = std::make_shared<OperationGraph>();
  const auto tensor = [&](const std::vector<int>& extents, int of) {
    return GraphTensorOf(extents, of, d.channels_last);
  };
  int steps = d.residual + d.bias + (d.activation != Activation::kNone);
  const auto result = [&]() -> const Descriptor& {
    return steps-- > 0 ? graph->Virtual(tensor(d.output, kCudnnFloat))
                       : graph->Argument(tensor(d.output, type), places.output);
  };
  const Descriptor& x = graph->Argument(tensor(d.input, type), 0);
  const Descriptor& w = graph->Argument(tensor(d.weights, type), 1);
  const Descriptor* last = &result();
  graph->Convolve(x, w, *last, Wide(d.padding), Wide(d.strides), Wide(d.dilation));
  const auto then = [&](const OperationGraph::Pointwise& operation) {
    const Descriptor& next = result();
    graph->Apply(operation, *last, next);
    last = &next;
  };
  if (d.residual) {
    const Descriptor& summand = graph->Argument(tensor(d.output, type), places.residual);
    then({kApplyAdd, &summand});
  }
  if (d.bias) {
    const Descriptor& bias = graph->Argument(tensor({1, d.output.at(1), 1, 1}, type), places.bias);
    then({kApplyAdd, &bias});
  }
  if (d.activation == Activation::kRelu) then({kApplyRelu});
  return graph;
}

/// Engines that are compiled when they are built take seconds, and cuDNN has others for these.
EngineRules RulesOf(const ConvolutionDescription& d) {
  return {.tensor_cores = d.dtype != "float32" || d.tf32,
          .compiled_at_runtime = false,
          .most = kMostPlans};
}

}  // namespace

std::string KeyOf(const ConvolutionDescription& d) {
  std::string key = "convolution " + d.dtype;
  const auto add = [&](int value) { key += " " + std::to_string(value); };
  for (const bool flag : {d.tf32, d.channels_last, d.residual, d.bias}) add(flag);
  add(static_cast<int>(d.activation));
  add(d.groups);
  for (const auto* part : {&d.input, &d.weights, &d.output, &d.padding, &d.strides, &d.dilation}) {
    for (const int value : *part) add(value);
  }
  return key;
}

std::vector<std::string> CompileConvolution(const ConvolutionDescription& description,
                                            const std::string& properties) {
  return CompilePlans(*GraphOf(description), properties, RulesOf(description));
}

std::vector<std::unique_ptr<Candidate>> ConvolutionCandidates(const ConvolutionDescription& d,
                                                              Stream stream) {
  std::vector<std::unique_ptr<Candidate>> plans;
  try {
    if (CudnnGraph() != nullptr) plans = PlanCandidates(GraphOf(d), RulesOf(d), stream);
  } catch (const CudnnRefusal&) {
    // The older interface then.
  }
  std::vector<std::unique_ptr<Candidate>> algorithms = Algorithms(d, stream);
  // The older interface's kernels for channels last are few.
  auto& first = d.channels_last ? plans : algorithms;
  auto& second = d.channels_last ? algorithms : plans;
  std::move(second.begin(), second.end(), std::back_inserter(first));
  return std::move(first);
}

std::unique_ptr<Prepared> PrepareConvolution(const ConvolutionDescription& d,
                                             const std::string& name, Stream stream) {
  return std::make_unique<FastestCandidate>(KeyOf(d), name, ConvolutionCandidates(d, stream),
                                            [d] { return PlainKernelOf(d); });
}

}  // namespace tvm_sched::cuda_kernels
