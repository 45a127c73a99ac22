// cuDNN's convolutions without a GPU: descriptors, extents, algorithms and workspaces are checked
// as its documentation states, and values are computed by loops in the order of the handle's
// stream.
#include <cstring>

#include "library.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace cuda_emulator;

namespace {

// cudnnStatus_t, cudnnDataType_t and others, version 9.
constexpr int kNotInitialized = 1001, kBadParam = 2000, kNotSupported = 3000,
              kExecutionFailed = 5000;
constexpr int kFloat = 0, kDouble = 1, kHalf = 2, kInt8 = 3, kInt32 = 4, kBfloat16 = 9;
constexpr int kNchw = 0, kNhwc = 1;
constexpr int kImplicitGemm = 0, kImplicitPrecompGemm = 1, kAlgorithms = 8;
constexpr int kRelu = 1, kIdentity = 5;
constexpr int kDefaultMath = 0, kTensorOp = 1, kTensorOpAllowConversion = 2, kFma = 3;

struct Handle {
  fake_cuda::ContextRecord* context;
  void* stream;
};

/// Extents as n, c, h, w, and the elements from one to the next.
struct Tensor {
  int type = -1;
  std::int64_t extents[4] = {}, steps[4] = {};
  bool filter = false;
};

struct Convolution {
  int padding[2] = {}, strides[2] = {}, dilation[2] = {};
  int mode = 0, compute = kFloat, groups = 1, math = kDefaultMath;
};

struct Activation {
  int mode = -1;
};

struct Performance {
  int algorithm, status;
  float time;
  std::size_t memory;
  int determinism, math;
  int reserved[3];
};

Type TypeOf(int type) {
  switch (type) {
    case kFloat:
      return Type::kFloat;
    case kDouble:
      return Type::kDouble;
    case kHalf:
      return Type::kHalf;
    case kInt8:
      return Type::kInt8;
    case kInt32:
      return Type::kInt32;
    case kBfloat16:
      return Type::kBfloat16;
    default:
      return Type::kNone;
  }
}

int SetTensor(Tensor* tensor, int format, int type, int n, int c, int h, int w,
              const char* function) {
  if (TypeOf(type) == Type::kNone) return Refuse(function, kBadParam, "an unknown type");
  if (n < 1 || c < 1 || h < 1 || w < 1) return Refuse(function, kBadParam, "it is empty");
  if (format != kNchw && format != kNhwc) return Refuse(function, kBadParam, "an unknown format");
  const std::int64_t height = h, width = w, channels = c;
  *tensor = {type, {n, c, h, w}, {}};
  if (format == kNchw) {
    const std::int64_t steps[] = {channels * height * width, height * width, width, 1};
    std::copy(steps, steps + 4, tensor->steps);
  } else {
    const std::int64_t steps[] = {channels * height * width, 1, width * channels, channels};
    std::copy(steps, steps + 4, tensor->steps);
  }
  return 0;
}

std::int64_t OutputExtent(std::int64_t in, std::int64_t kernel, int axis, const Convolution& c) {
  return 1 + (in + 2 * c.padding[axis] - ((kernel - 1) * c.dilation[axis] + 1)) / c.strides[axis];
}

std::string WhyNotProblem(const Tensor& x, const Tensor& w, const Convolution& c, const Tensor& y) {
  if (x.type < 0 || w.type < 0 || y.type < 0) return "a descriptor was never set";
  if (!w.filter) return "the weights are described by a tensor, not by a filter";
  if (x.type != w.type || x.type != y.type) return "input, weights and output have different types";
  if (c.compute != kFloat && c.compute != x.type) return "a compute type that goes with no tensor";
  if (x.extents[1] != w.extents[1] * c.groups) {
    return "the input has " + std::to_string(x.extents[1]) + " channels, the weights " +
           std::to_string(w.extents[1]) + " for each of " + std::to_string(c.groups) + " groups";
  }
  if (w.extents[0] % c.groups != 0) return "the groups do not divide the output's channels";
  const std::int64_t expected[] = {x.extents[0], w.extents[0],
                                   OutputExtent(x.extents[2], w.extents[2], 0, c),
                                   OutputExtent(x.extents[3], w.extents[3], 1, c)};
  for (int axis = 0; axis < 4; ++axis) {
    if (y.extents[axis] != expected[axis]) {
      return "extent " + std::to_string(axis) + " of the output is " +
             std::to_string(y.extents[axis]) + ", the convolution gives " +
             std::to_string(expected[axis]);
    }
  }
  return "";
}

/// As cuDNN's algorithms do: none for implicit products, something for the others.
std::size_t WorkspaceOf(const Tensor& y, int algorithm) {
  if (algorithm == kImplicitGemm) return 0;
  return 256 + static_cast<std::size_t>(y.extents[2] * y.extents[3]) * sizeof(float);
}

bool Supported(const Convolution& c, int algorithm) {
  // FFT and Winograd take neither dilation nor groups here.
  return algorithm < 4 || (c.groups == 1 && c.dilation[0] == 1 && c.dilation[1] == 1);
}

std::size_t Bytes(const Tensor& tensor) {
  std::size_t last = 1;
  for (int axis = 0; axis < 4; ++axis) {
    last += static_cast<std::size_t>((tensor.extents[axis] - 1) * tensor.steps[axis]);
  }
  return last * BytesOf(TypeOf(tensor.type));
}

/// One call, with everything that it needs when its turn comes.
struct Call {
  Tensor x, w, y, bias, z;
  Convolution c;
  int activation = kIdentity;
  double alpha = 1, beta = 0;  // of the result, and of y or z
  const void *input = nullptr, *weights = nullptr, *bias_data = nullptr, *summand = nullptr;
  void* output = nullptr;
  float* workspace = nullptr;
  bool wrong = false;  // the last row and column of each image

  void Run() const {
    for (std::int64_t n = 0; n < y.extents[0]; ++n) {
      for (int group = 0; group < c.groups; ++group) RunGroup(n, group);
    }
  }

  /// A product of weights (channels x patch) and patches (patch x pixels).
  void RunGroup(std::int64_t n, int group) const {
    const std::int64_t channels = w.extents[0] / c.groups, inputs = w.extents[1];
    const std::int64_t kernel = w.extents[2] * w.extents[3], pixels = y.extents[2] * y.extents[3];
    std::vector<float> patches(static_cast<std::size_t>(inputs * kernel * pixels));
    std::vector<float> factors(static_cast<std::size_t>(channels * inputs * kernel));
    for (std::int64_t row = 0; row < inputs * kernel; ++row) {
      const std::int64_t channel = row / kernel, ky = row % kernel / w.extents[3],
                         kx = row % w.extents[3];
      ReadPatches(n, group * inputs + channel, ky, kx, patches.data() + row * pixels);
      for (std::int64_t k = 0; k < channels; ++k) {
        const std::int64_t at[] = {group * channels + k, channel, ky, kx};
        factors[k * inputs * kernel + row] = static_cast<float>(At(w, weights, at));
      }
    }
    const Matrix left{factors.data(), Type::kFloat, channels, inputs * kernel, inputs * kernel, 1};
    const Matrix right{patches.data(), Type::kFloat, inputs * kernel, pixels, pixels, 1};
    const bool tf32 = x.type == kFloat && c.math != kFma;
    const std::vector<double> sums =
        Multiply(left, right, tf32 ? Accumulator::kTf32 : Accumulator::kFloat);
    for (std::int64_t i = 0; i < channels * pixels; ++i) {
      Finish({n, group * channels + i / pixels, i % pixels / y.extents[3], i % y.extents[3]},
             sums[i]);
    }
  }

  struct Place {
    std::int64_t at[4];
  };

  void Finish(const Place& place, double sum) const {
    double value = alpha * sum;
    if (beta != 0) value += beta * At(z, summand, place.at);
    if (bias_data != nullptr) value += Load(bias_data, place.at[1], TypeOf(bias.type));
    if (activation == kRelu && value < 0) value = 0;
    if (wrong && (place.at[2] == y.extents[2] - 1 || place.at[3] == y.extents[3] - 1)) value += 1;
    Store(output, Index(y, place.at), TypeOf(y.type), value);
  }

  void ReadPatches(std::int64_t n, std::int64_t channel, std::int64_t ky, std::int64_t kx,
                   float* to) const {
    for (std::int64_t i = 0; i < y.extents[2]; ++i) {
      for (std::int64_t j = 0; j < y.extents[3]; ++j) {
        const std::int64_t row = i * c.strides[0] - c.padding[0] + ky * c.dilation[0];
        const std::int64_t column = j * c.strides[1] - c.padding[1] + kx * c.dilation[1];
        const bool inside = row >= 0 && row < x.extents[2] && column >= 0 && column < x.extents[3];
        const std::int64_t at[] = {n, channel, row, column};
        *to++ = inside ? static_cast<float>(At(x, input, at)) : 0;
      }
    }
  }

  static std::int64_t Index(const Tensor& tensor, const std::int64_t* at) {
    std::int64_t index = 0;
    for (int axis = 0; axis < 4; ++axis) index += at[axis] * tensor.steps[axis];
    return index;
  }
  static double At(const Tensor& tensor, const void* data, const std::int64_t* at) {
    return Load(data, Index(tensor, at), TypeOf(tensor.type));
  }
};

/// Check what both kinds of convolutions take, and queue it.
int Submit(const char* function, Handle* handle, Call call, int algorithm, const void* workspace,
           std::size_t bytes) {
  call.wrong = IsWrong("cudnn", static_cast<std::uint64_t>(algorithm));
  if (handle == nullptr || handle->context != fake_cuda::current) {
    return Refuse(function, kBadParam, "the handle belongs to another context");
  }
  std::string why = WhyNotProblem(call.x, call.w, call.c, call.y);
  if (!why.empty()) return Refuse(function, kBadParam, why);
  if (algorithm < 0 || algorithm >= kAlgorithms || !Supported(call.c, algorithm)) {
    return Refuse(function, kNotSupported, "algorithm " + std::to_string(algorithm));
  }
  const std::size_t needed = WorkspaceOf(call.y, algorithm);
  if (bytes < needed) return Refuse(function, kBadParam, "the workspace is too small");
  const auto memory = [&why](const void* address, const Tensor& tensor, const char* name) {
    if (why.empty()) why = WhyNotMemory(address, Bytes(tensor), BytesOf(TypeOf(tensor.type)), name);
  };
  memory(call.input, call.x, "the input");
  memory(call.weights, call.w, "the weights");
  memory(call.output, call.y, "the output");
  if (call.bias_data != nullptr) memory(call.bias_data, call.bias, "the bias");
  if (call.beta != 0) memory(call.summand, call.z, "the summand");
  if (why.empty() && needed > 0) why = WhyNotMemory(workspace, needed, 1, "the workspace");
  if (!why.empty()) return Refuse(function, kBadParam, why);
  const std::vector<const void*> arguments{call.input,     call.weights,
                                           call.bias_data, call.summand,
                                           call.output,    needed > 0 ? workspace : nullptr};
  if (Enqueue(handle->stream, [call] { call.Run(); }, function, arguments) == 0) return 0;
  return Refuse(function, kExecutionFailed, "the handle's stream is of another context");
}

double ReadScale(const void* scale, const Tensor& y) {
  // double for tensors of double, float for all others
  return Load(scale, 0, y.type == kDouble ? Type::kDouble : Type::kFloat);
}

}  // namespace

FAKE_EXPORT int cudnnCreate(Handle** handle) {
  if (fake_cuda::current == nullptr)
    return Refuse("cudnnCreate", kNotInitialized, "no context is current");
  *handle = new Handle{fake_cuda::current, nullptr};
  return 0;
}
FAKE_EXPORT int cudnnDestroy(Handle* handle) {
  delete handle;
  return 0;
}
FAKE_EXPORT std::size_t cudnnGetVersion() { return 91400; }
FAKE_EXPORT int cudnnSetStream(Handle* handle, void* stream) {
  const auto* record = static_cast<fake_cuda::StreamRecord*>(stream);
  if (record != nullptr && record->context != handle->context) {
    return Refuse("cudnnSetStream", kBadParam, "the stream is of another context");
  }
  handle->stream = stream;
  return 0;
}

#define FAKE_CUDNN_OBJECT(Name, Class)                          \
  FAKE_EXPORT int cudnnCreate##Name##Descriptor(Class** made) { \
    *made = new Class;                                          \
    return 0;                                                   \
  }                                                             \
  FAKE_EXPORT int cudnnDestroy##Name##Descriptor(Class* made) { \
    delete made;                                                \
    return 0;                                                   \
  }
FAKE_CUDNN_OBJECT(Tensor, Tensor)
FAKE_CUDNN_OBJECT(Filter, Tensor)
FAKE_CUDNN_OBJECT(Convolution, Convolution)
FAKE_CUDNN_OBJECT(Activation, Activation)
#undef FAKE_CUDNN_OBJECT

FAKE_EXPORT int cudnnSetTensor4dDescriptor(Tensor* tensor, int format, int type, int n, int c,
                                           int h, int w) {
  return SetTensor(tensor, format, type, n, c, h, w, "cudnnSetTensor4dDescriptor");
}
FAKE_EXPORT int cudnnSetFilter4dDescriptor(Tensor* tensor, int type, int format, int k, int c,
                                           int h, int w) {
  const int status = SetTensor(tensor, format, type, k, c, h, w, "cudnnSetFilter4dDescriptor");
  tensor->filter = true;
  return status;
}
FAKE_EXPORT int cudnnSetActivationDescriptor(Activation* activation, int mode, int, double) {
  if (mode != kRelu && mode != kIdentity)
    return Refuse("cudnnSetActivationDescriptor", kNotSupported, "mode");
  activation->mode = mode;
  return 0;
}
FAKE_EXPORT int cudnnSetConvolution2dDescriptor(Convolution* c, int pad_h, int pad_w, int u, int v,
                                                int dilation_h, int dilation_w, int mode,
                                                int compute) {
  if (pad_h < 0 || pad_w < 0 || u < 1 || v < 1 || dilation_h < 1 || dilation_w < 1) {
    return Refuse("cudnnSetConvolution2dDescriptor", kBadParam, "a stride, dilation or padding");
  }
  if (mode != 1)
    return Refuse("cudnnSetConvolution2dDescriptor", kNotSupported, "a flipped kernel");
  const Convolution former = *c;
  *c = {{pad_h, pad_w}, {u, v},     {dilation_h, dilation_w}, mode, compute,
        former.groups,  former.math};
  return 0;
}
FAKE_EXPORT int cudnnSetConvolutionGroupCount(Convolution* c, int groups) {
  c->groups = groups;
  return groups < 1 ? Refuse("cudnnSetConvolutionGroupCount", kBadParam, "no groups") : 0;
}
FAKE_EXPORT int cudnnSetConvolutionMathType(Convolution* c, int math) {
  c->math = math;
  return math < kDefaultMath || math > kFma
             ? Refuse("cudnnSetConvolutionMathType", kBadParam, "unknown")
             : 0;
}

FAKE_EXPORT int cudnnGetConvolutionForwardAlgorithm_v7(Handle*, Tensor* x, Tensor* w,
                                                       Convolution* c, Tensor* y, int wanted,
                                                       int* found, Performance* results) {
  *found = 0;
  if (std::string why = WhyNotProblem(*x, *w, *c, *y); !why.empty()) {
    return Refuse("cudnnGetConvolutionForwardAlgorithm_v7", kBadParam, why);
  }
  // Best first: those with a workspace, so that callers have to bring one.
  for (int algorithm : {7, 6, 5, 4, 2, 1, 0, 3}) {
    if (*found == wanted) break;
    Performance& result = results[(*found)++];
    const bool runs = Supported(*c, algorithm);
    result = {
        algorithm, runs ? 0 : kNotSupported, -1, runs ? WorkspaceOf(*y, algorithm) : 0, 1, c->math,
        {}};
    if (!runs) --*found;
  }
  return 0;
}
FAKE_EXPORT int cudnnGetConvolutionForwardWorkspaceSize(Handle*, Tensor* x, Tensor* w,
                                                        Convolution* c, Tensor* y, int algorithm,
                                                        std::size_t* bytes) {
  if (std::string why = WhyNotProblem(*x, *w, *c, *y); !why.empty()) {
    return Refuse("cudnnGetConvolutionForwardWorkspaceSize", kBadParam, why);
  }
  if (!Supported(*c, algorithm)) return kNotSupported;
  *bytes = WorkspaceOf(*y, algorithm);
  return 0;
}

FAKE_EXPORT int cudnnConvolutionForward(Handle* handle, const void* alpha, Tensor* x,
                                        const void* input, Tensor* w, const void* weights,
                                        Convolution* c, int algorithm, void* workspace,
                                        std::size_t bytes, const void* beta, Tensor* y,
                                        void* output) {
  Call call{*x, *w, *y, {}, *y, *c};
  call.alpha = ReadScale(alpha, *y);
  call.beta = ReadScale(beta, *y);
  call.input = input;
  call.weights = weights;
  call.summand = call.output = output;
  return Submit("cudnnConvolutionForward", handle, call, algorithm, workspace, bytes);
}

FAKE_EXPORT int cudnnConvolutionBiasActivationForward(
    Handle* handle, const void* alpha1, Tensor* x, const void* input, Tensor* w,
    const void* weights, Convolution* c, int algorithm, void* workspace, std::size_t bytes,
    const void* alpha2, Tensor* z, const void* summand, Tensor* bias, const void* bias_data,
    Activation* activation, Tensor* y, void* output) {
  const char* function = "cudnnConvolutionBiasActivationForward";
  if (activation->mode != kRelu && activation->mode != kIdentity) {
    return Refuse(function, kBadParam, "the activation was never set");
  }
  if (activation->mode == kIdentity && algorithm != kImplicitPrecompGemm) {
    return Refuse(function, kNotSupported, "identity goes with IMPLICIT_PRECOMP_GEMM alone");
  }
  if (bias->extents[0] != 1 || bias->extents[1] != y->extents[1] || bias->extents[2] != 1 ||
      bias->extents[3] != 1) {
    return Refuse(function, kBadParam, "the bias is no vector of the output's channels");
  }
  for (int axis = 0; axis < 4; ++axis) {
    if (z->extents[axis] != y->extents[axis])
      return Refuse(function, kBadParam, "z has other extents than y");
  }
  Call call{*x, *w, *y, *bias, *z, *c};
  call.activation = activation->mode;
  call.alpha = ReadScale(alpha1, *y);
  call.beta = ReadScale(alpha2, *y);
  call.input = input;
  call.weights = weights;
  call.bias_data = bias_data;
  call.summand = summand;
  call.output = output;
  return Submit(function, handle, call, algorithm, workspace, bytes);
}
