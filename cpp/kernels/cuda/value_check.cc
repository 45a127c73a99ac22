#include "kernels/cuda/value_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "kernels/cuda/call.h"
#include "kernels/cuda/candidates.h"
#include "kernels/cuda/nvidia_libraries.h"
#include "kernels/sampled_positions.h"
#include "kernels/value_findings.h"
#include "runtime/cuda/gpus.h"

namespace tvm_sched::cuda_kernels {

using runtime::cuda::Check;
using runtime::cuda::DevicePointer;
using runtime::cuda::Driver;

namespace {

constexpr int kVersion = 1;  // of the check: what an older one found does not count
constexpr std::int64_t kMostTerms = 1 << 19, kFewestCompared = 96;
constexpr double kSquares = 14.0 / 3;  // mean of the squares of the small numbers
constexpr std::size_t kChunk = 32 * kSmallNumbers * sizeof(float);  // bytes that are copied at once

/// Memory is short, so nothing is known of the candidate.
struct NotCompared {};

/// The power of 2 that makes sums of so many products about as large as 1. All types hold it.
double FactorFor(double terms) {
  return std::exp2(std::clamp(-std::round(std::log2(kSquares * std::sqrt(terms))), -12.0, 4.0));
}

/// Of the larger of 1 and the value: what rounding may change, and algorithms such as Winograd's.
double ToleranceOf(const std::string& dtype) {
  if (dtype == "int32") return 0;
  return dtype == "float32" ? 1e-3 : dtype == "float16" ? 5e-3 : 2e-2;
}

std::size_t BytesOf(const std::string& dtype) {
  return dtype == "int8" ? 1 : dtype == "float16" || dtype == "bfloat16" ? 2 : 4;
}

/// A small number as the GPU's memory holds it, the lower bytes first.
std::uint32_t Encode(double number, const std::string& dtype) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(number));
  if (dtype == "float32") return bits;
  if (dtype == "bfloat16") return bits >> 16;
  if (dtype == "float16") {
    return (bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff);
  }
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(number));
}

double Decode(const std::byte* from, const std::string& dtype) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, from, BytesOf(dtype));
  if (dtype == "float32") return std::bit_cast<float>(bits);
  if (dtype == "bfloat16") return std::bit_cast<float>(bits << 16);
  if (dtype == "int8") return static_cast<std::int8_t>(bits);
  if (dtype != "float16") return static_cast<std::int32_t>(bits);
  const auto exponent = static_cast<int>(bits >> 10 & 0x1f);
  const auto fraction = static_cast<int>(bits & 0x3ff);
  const double magnitude = exponent == 31  ? NAN  // or infinity, which is as wrong
                           : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double Activated(double x, Activation activation) {
  if (activation == Activation::kRelu) return std::max(x, 0.0);
  if (activation == Activation::kNone) return x;
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

std::int64_t Volume(const std::vector<int>& extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

struct FreeMemory {
  void operator()(std::byte* memory) const {
    Driver().MemoryFree(reinterpret_cast<DevicePointer>(memory));
  }
};
struct FreeHostMemory {
  void operator()(std::byte* memory) const { Driver().HostFree(memory); }
};

/// Copies between the GPU and pinned memory of `kChunk` bytes; each is waited for.
class Copier {
 public:
  explicit Copier(Stream stream) : stream_(stream) {
    void* made = nullptr;
    if (Driver().HostAllocate(&made, kChunk, runtime::cuda::kHostAllocPortable) !=
        runtime::cuda::kSuccess) {
      throw NotCompared();
    }
    chunk_.reset(static_cast<std::byte*>(made));
  }

  std::byte* chunk() { return chunk_.get(); }

  /// The chunk to `size` bytes, again and again.
  void Fill(std::byte* to, std::size_t size) {
    for (std::size_t k = 0; k < size; k += kChunk) {
      Copy(to + k, chunk(), std::min(kChunk, size - k));
    }
  }
  void Copy(std::byte* to, const std::byte* from, std::size_t size) {
    const char* what = "copying the numbers of a check";
    Check(Driver().CopyAsync(reinterpret_cast<DevicePointer>(to),
                             reinterpret_cast<DevicePointer>(from), size, stream_),
          what);
    Check(Driver().StreamSynchronize(stream_), what);
  }

 private:
  Stream stream_;
  std::unique_ptr<std::byte, FreeHostMemory> chunk_;
};

/// Run the candidate once and compare; what is wrong, or nothing: also where it refuses the kernel.
std::optional<std::string> Compare(const PlainKernel& plain, Candidate& candidate, void* workspace,
                                   Stream stream) {
  std::vector<std::unique_ptr<std::byte, FreeMemory>> memory;
  std::vector<void*> data;
  const auto bytes = [](const PlainKernel::Tensor& tensor) {
    return static_cast<std::size_t>(tensor.elements) * BytesOf(tensor.dtype);
  };
  for (const PlainKernel::Tensor& tensor : plain.tensors) {  // first of all, since it is cheap
    DevicePointer address = 0;
    if (Driver().MemoryAllocate(&address, bytes(tensor)) != runtime::cuda::kSuccess) {
      throw NotCompared();
    }
    memory.emplace_back(reinterpret_cast<std::byte*>(address));
    data.push_back(memory.back().get());
  }
  Copier copier(stream);
  for (std::size_t each = 0; each < data.size(); ++each) {
    const PlainKernel::Tensor& tensor = plain.tensors[each];
    const std::size_t element = BytesOf(tensor.dtype);
    // NaN in the result: numbers of an earlier candidate are none of this one.
    std::memset(copier.chunk(), 0xFF, kChunk);
    for (std::size_t k = 0; &tensor != &plain.tensors.back() && k < kChunk / element; ++k) {
      const std::uint32_t bits = Encode(tensor.Number(static_cast<std::int64_t>(k)), tensor.dtype);
      std::memcpy(copier.chunk() + k * element, &bits, element);
    }
    copier.Fill(memory[each].get(), bytes(tensor));
  }
  const bool executed = candidate.Run(data, workspace, stream);
  Check(Driver().StreamSynchronize(stream), candidate.label());
  if (!executed) return std::nullopt;

  const std::string& dtype = plain.tensors.back().dtype;
  const std::size_t element = BytesOf(dtype);
  const std::size_t size = bytes(plain.tensors.back());
  std::size_t first = 0, end = 0;  // bytes of the result that the chunk holds
  for (const PlainKernel::Value& each : plain.Sample()) {
    const std::size_t at = static_cast<std::size_t>(each.element) * element;
    if (at >= end) {
      first = at;
      end = std::min(size, first + kChunk);
      copier.Copy(copier.chunk(), memory.back().get() + first, end - first);
    }
    const double found = Decode(copier.chunk() + (at - first), dtype);
    if (std::abs(found - each.value) <= ToleranceOf(dtype) * std::max(1.0, std::abs(each.value))) {
      continue;
    }
    return "computed " + std::to_string(found) + " in place of " + std::to_string(each.value) +
           " at element " + std::to_string(each.element);
  }
  return std::nullopt;
}

/// What a finding holds for besides its kernel.
std::string Machine(const std::string& gpu) {
  static const std::string libraries = [] {
    std::string text;
    for (const auto& each : FindLibraries()) {
      text += ", " + each.name + " " + std::to_string(each.version);
    }
    return text;
  }();
  return "on " + gpu + libraries;
}

ValueFindings& TheFindings() {
  static ValueFindings findings("cuda_values.txt");
  return findings;
}

}  // namespace

double PlainKernel::Tensor::Number(std::int64_t element) const {
  return SmallNumbers()[static_cast<std::size_t>(element + first) % kSmallNumbers] * factor;
}

std::vector<PlainKernel::Value> PlainKernel::Sample() const {
  std::vector<Value> found;
  for (const auto& at : SampledPositions(
           extents, std::max(kFewestCompared, kMostTerms / std::max<std::int64_t>(terms, 1)))) {
    found.push_back(this->at(at));
  }
  std::sort(found.begin(), found.end(),
            [](const Value& a, const Value& b) { return a.element < b.element; });
  return found;
}

PlainKernel PlainKernelOf(const MatmulDescription& d) {
  const auto offset = [](const MatrixDescription& matrix, std::int64_t batch, std::int64_t row,
                         std::int64_t column) {
    if (matrix.transposed) std::swap(row, column);
    return batch * matrix.batch_stride + row * matrix.stride + column;
  };
  const bool integers = d.dtype == "int8";
  const double factor = integers ? 42 : FactorFor(static_cast<double>(d.k));
  PlainKernel plain;
  plain.tensors = {{d.dtype, offset(d.a, d.batch - 1, d.m - 1, d.k - 1) + 1, factor},
                   {d.dtype, offset(d.b, d.batch - 1, d.k - 1, d.n - 1) + 1, 1, 1009}};
  if (d.bias) plain.tensors.push_back({d.result_dtype, d.n, integers ? 1.0 : 0.5, 2018});
  plain.tensors.push_back({d.result_dtype, d.batch * d.m * d.n, 0});
  plain.extents = {d.batch, d.m, d.n};
  plain.terms = d.k;
  plain.at = [d, offset, tensors = plain.tensors](const std::vector<std::int64_t>& at) {
    double sum = d.bias ? tensors[2].Number(at[2]) : 0;
    for (std::int64_t k = 0; k < d.k; ++k) {
      sum += tensors[0].Number(offset(d.a, at[0], at[1], k)) *
             tensors[1].Number(offset(d.b, at[0], k, at[2]));
    }
    return PlainKernel::Value{(at[0] * d.m + at[1]) * d.n + at[2], Activated(sum, d.activation)};
  };
  return plain;
}

PlainKernel PlainKernelOf(const ConvolutionDescription& d) {
  PlainKernel plain;
  plain.terms = Volume(d.weights) / d.weights.at(0);
  plain.tensors = {{d.dtype, Volume(d.input), FactorFor(static_cast<double>(plain.terms))},
                   {d.dtype, Volume(d.weights), 1, 1009}};
  if (d.bias) plain.tensors.push_back({d.dtype, d.output.at(1), 0.5, 2018});
  if (d.residual) plain.tensors.push_back({d.dtype, Volume(d.output), 0.5, 3027});
  plain.tensors.push_back({d.dtype, Volume(d.output), 0});
  plain.extents = {d.output.begin(), d.output.end()};
  plain.at = [d, tensors = plain.tensors](const std::vector<std::int64_t>& at) {
    // Of an image or of weights.
    const auto offset = [&d](const std::vector<int>& extents, std::int64_t n, std::int64_t c,
                             std::int64_t h, std::int64_t w) {
      return d.channels_last ? ((n * extents[2] + h) * extents[3] + w) * extents[1] + c
                             : ((n * extents[1] + c) * extents[2] + h) * extents[3] + w;
    };
    const std::int64_t element = offset(d.output, at[0], at[1], at[2], at[3]);
    double sum = d.bias ? tensors[2].Number(at[1]) : 0;
    if (d.residual) sum += tensors[tensors.size() - 2].Number(element);
    const std::int64_t group = at[1] / (d.output[1] / d.groups);
    for (int i = 0; i < d.weights[2]; ++i) {
      const std::int64_t h = at[2] * d.strides[0] - d.padding[0] + i * d.dilation[0];
      for (int j = 0; j < d.weights[3]; ++j) {
        const std::int64_t w = at[3] * d.strides[1] - d.padding[1] + j * d.dilation[1];
        if (h < 0 || h >= d.input[2] || w < 0 || w >= d.input[3]) continue;
        for (int c = 0; c < d.weights[1]; ++c) {
          sum += tensors[0].Number(offset(d.input, at[0], group * d.weights[1] + c, h, w)) *
                 tensors[1].Number(offset(d.weights, at[1], c, i, j));
        }
      }
    }
    return PlainKernel::Value{element, Activated(sum, d.activation)};
  };
  return plain;
}

PlainKernel PlainKernelOf(const AttentionDescription& d) {
  using Place = AttentionDescription::Place;
  const auto offset = [](const Place& place, std::int64_t batch, std::int64_t head,
                         std::int64_t row) {
    return place[0] + batch * place[1] + head * place[2] + row * place[3];
  };
  const auto elements = [&](const Place& place, std::int64_t heads, std::int64_t rows,
                            std::int64_t width) {
    return offset(place, d.batch - 1, heads - 1, rows - 1) + width;
  };
  PlainKernel plain;
  const double variance = static_cast<double>(d.width) * d.scale * d.scale;
  plain.tensors = {{d.dtype, elements(d.query, d.heads, d.rows, d.width), FactorFor(variance)},
                   {d.dtype, elements(d.key, d.shared_heads, d.keys, d.width), 1, 1009},
                   {d.dtype, elements(d.value, d.shared_heads, d.keys, d.out), 0.5, 2018},
                   {d.dtype, elements(d.result, d.heads, d.rows, d.out), 0}};
  plain.extents = {d.batch, d.heads, d.rows, d.out};
  plain.terms = d.keys * (d.width + 1);
  plain.at = [d, offset, tensors = plain.tensors](const std::vector<std::int64_t>& at) {
    const std::int64_t shared = at[1] / (d.heads / d.shared_heads);
    const std::int64_t seen = d.causal ? std::min(d.keys, at[2] + d.shift + 1) : d.keys;
    const std::int64_t row = offset(d.query, at[0], at[1], at[2]);
    double sum = 0, value = 0;  // scores are about as large as 1, so no power overflows
    for (std::int64_t j = 0; j < seen; ++j) {
      const std::int64_t key = offset(d.key, at[0], shared, j);
      double score = 0;
      for (std::int64_t c = 0; c < d.width; ++c) {
        score += tensors[0].Number(row + c) * tensors[1].Number(key + c);
      }
      const double weight = std::exp(score * d.scale);
      sum += weight;
      value += weight * tensors[2].Number(offset(d.value, at[0], shared, j) + at[3]);
    }
    return PlainKernel::Value{offset(d.result, at[0], at[1], at[2]) + at[3], value / sum};
  };
  return plain;
}

bool IsRight(Candidate& candidate, const std::string& key,
             const std::function<PlainKernel()>& plain, void* workspace, Stream stream) {
  static const auto gpus = runtime::cuda::ListGpus();
  const std::string where = Machine(gpus.at(static_cast<std::size_t>(CurrentGpu())).name);
  const std::string kernel = candidate.label() + " ";
  const std::string hash = Hash(std::to_string(kVersion) + where + kernel + key);
  try {
    return TheFindings().IsRight(hash, [&]() -> std::optional<std::string> {
      const std::optional<std::string> wrong = Compare(plain(), candidate, workspace, stream);
      if (!wrong) return std::nullopt;
      return kernel + *wrong + " of " + key + " " + where;
    });
  } catch (const NotCompared&) {
    TheFindings().Trust({hash});  // in this process: the next may have the memory
    return true;
  }
}

std::vector<std::string> FoundWrong() {
  std::set<std::string> machines;
  for (const auto& gpu : runtime::cuda::ListGpus()) machines.insert(Machine(gpu.name));
  std::vector<std::string> found;
  for (const std::string& machine : machines) {
    for (std::string& each : TheFindings().Wrong(machine)) found.push_back(std::move(each));
  }
  return found;
}

int CountChecks() { return TheFindings().Count(); }

}  // namespace tvm_sched::cuda_kernels
