#include "kernels/onednn/matrix_vector.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "kernels/onednn/vector_math.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

constexpr std::int64_t kTaskBytes = 256 << 10;  // of weights; fewer are not worth another thread

constexpr int kLanes = 16, kUnrolled = 4;
constexpr std::int64_t kSummedTerms = 64 << 10;  // of a row, before the sums are added to a total
using Floats = VectorOf<float, kLanes>::Type;

inline __attribute__((always_inline)) void Load(const float* from, Floats& to) {
  std::memcpy(&to, from, sizeof to);
}

/// A bfloat16 is the upper half of a float32.
inline __attribute__((always_inline)) void Load(const std::uint16_t* from, Floats& to) {
  VectorOf<std::uint16_t, kLanes>::Type halves;
  std::memcpy(&halves, from, sizeof halves);
  const auto wide = __builtin_convertvector(halves, VectorOf<std::uint32_t, kLanes>::Type) << 16;
  std::memcpy(&to, &wide, sizeof to);
}

/// result[k] = source . weights[k], for rows of this many terms. One row at a time: several, whose
/// addresses are often the same but for multiples of a page, were read at half the speed.
template <typename Weight>
inline __attribute__((always_inline)) void Products(const float* source, const Weight* weights,
                                                    float* result, std::int64_t terms,
                                                    std::int64_t count) {
  // The last terms of a row, filled up with zeros.
  const std::int64_t whole = terms / kLanes * kLanes, rest = terms - whole;
  float last[kLanes] = {};
  std::copy_n(source + whole, rest, last);
  for (std::int64_t k = 0; k < count; ++k, weights += terms) {
    Floats total = {}, sums[kUnrolled] = {}, x, y;
    std::int64_t t = 0;
    while (t + kUnrolled * kLanes <= terms) {
      const std::int64_t end = std::min(terms, t + kSummedTerms);
      for (; t + kUnrolled * kLanes <= end; t += kUnrolled * kLanes) {
#pragma GCC unroll 4
        for (int u = 0; u < kUnrolled; ++u) {
          Load(source + t + u * kLanes, x);
          Load(weights + t + u * kLanes, y);
          sums[u] += x * y;
        }
      }
      if (end == terms) break;
      total += (sums[0] + sums[1]) + (sums[2] + sums[3]);
      for (Floats& sum : sums) sum = Floats{};
    }
    for (; t < whole; t += kLanes) {
      Load(source + t, x);
      Load(weights + t, y);
      sums[0] += x * y;
    }
    if (rest > 0) {
      Weight filled[kLanes] = {};
      std::copy_n(weights + whole, rest, filled);
      Load(last, x);
      Load(filled, y);
      sums[1] += x * y;
    }
    const Floats all = total + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += all[lane];
    result[k] = sum;
  }
}

TVM_SCHED_VERSIONS void ProductsOfFloats(const float* source, const float* weights, float* result,
                                         std::int64_t terms, std::int64_t count) {
  Products(source, weights, result, terms, count);
}

TVM_SCHED_VERSIONS void ProductsOfHalves(const float* source, const std::uint16_t* weights,
                                         float* result, std::int64_t terms, std::int64_t count) {
  Products(source, weights, result, terms, count);
}

/// 1 / (1 + exp(-x)), with no number out of range on the way.
inline float Sigmoid(float x) {
  const float power = Exponential(x < 0 ? x : -x);
  return x < 0 ? power / (1 + power) : 1 / (1 + power);
}

/// In 0 to 1; NaN remains NaN.
inline float Between(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

/// Functions of a number x and two constants a and b.
using Elementwise = void (*)(float* values, std::int64_t count, float a, float b);

#define TVM_SCHED_ELEMENTWISE(name, expression)                                             \
  TVM_SCHED_VERSIONS void name(float* values, std::int64_t count, [[maybe_unused]] float a, \
                               [[maybe_unused]] float b) {                                  \
    _Pragma("omp simd") for (std::int64_t k = 0; k < count; ++k) {                          \
      const float x = values[k];                                                            \
      values[k] = (expression);                                                             \
    }                                                                                       \
  }

// Comparisons are such that NaN remains NaN.
TVM_SCHED_ELEMENTWISE(Relu, x < 0 ? (a == 0 ? 0 : a * x) : x)
TVM_SCHED_ELEMENTWISE(Clip, x<a ? a : x> b ? b : x)
TVM_SCHED_ELEMENTWISE(Linear, a* x + b)
TVM_SCHED_ELEMENTWISE(Logistic, Sigmoid(x))
TVM_SCHED_ELEMENTWISE(Silu, x* Sigmoid(a* x))
TVM_SCHED_ELEMENTWISE(GeluTanh, x* Sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x)))
TVM_SCHED_ELEMENTWISE(Gelu, 0.5f * x * (1 + std::erf(0.70710678118654752f * x)))

TVM_SCHED_ELEMENTWISE(HardSigmoid, Between(a* x + b))
TVM_SCHED_ELEMENTWISE(HardSwish, x* Between(a* x + b))

#undef TVM_SCHED_ELEMENTWISE

const std::map<std::string, Elementwise>& Functions() {
  static const std::map<std::string, Elementwise> known{
      {"relu", Relu},           {"clip", Clip},
      {"linear", Linear},       {"sigmoid", Logistic},
      {"silu", Silu},           {"gelu_tanh", GeluTanh},
      {"gelu", Gelu},           {"hard_sigmoid", HardSigmoid},
      {"hard_swish", HardSwish}};
  return known;
}

/// Functions of x and another operand's y, which lies as often as the step says.
using Binary = void (*)(float* values, const float* other, std::int64_t step, std::int64_t count);

#define TVM_SCHED_BINARY(name, expression)                                           \
  TVM_SCHED_VERSIONS void name(float* values, const float* other, std::int64_t step, \
                               std::int64_t count) {                                 \
    for (std::int64_t k = 0; k < count; ++k) {                                       \
      const float x = values[k], y = other[k * step];                                \
      values[k] = (expression);                                                      \
    }                                                                                \
  }

TVM_SCHED_BINARY(Add, x + y)
TVM_SCHED_BINARY(Subtract, x - y)
TVM_SCHED_BINARY(Multiply, x* y)
TVM_SCHED_BINARY(Divide, x / y)

#undef TVM_SCHED_BINARY

const std::map<std::string, Binary>& Operations() {
  static const std::map<std::string, Binary> known{
      {"add", Add}, {"subtract", Subtract}, {"multiply", Multiply}, {"divide", Divide}};
  return known;
}

/// 0 where an operand has one number for all columns, 1 where it has one for each, -1 for another.
std::int64_t StepOf(const Operand& operand, std::int64_t columns) {
  if (operand.type != DataType::kFloat32 || operand.offset != 0) return -1;
  const std::int64_t last = operand.dims.back();
  for (std::size_t d = 0; d + 1 < operand.dims.size(); ++d) {
    if (operand.dims[d] != 1) return -1;
  }
  if (last == 1) return 0;
  return last == columns && operand.strides.back() == 1 ? 1 : -1;
}

/// Whether an operand is a row of this many numbers.
bool IsRow(const Operand& operand, std::int64_t columns) {
  return operand.dims.back() == columns && StepOf(operand, columns) >= 0;
}

}  // namespace

bool MatrixVector::Computes(const Description& d) {
  if (d.primitive != "matmul" || d.operands.size() < 3) return false;
  const Operand &source = d.operands[0], &weights = d.operands[1], &result = d.result();
  const std::size_t rank = weights.dims.size();
  if (rank < 2 || !weights.parameter || d.source_zero != 0) return false;
  if (weights.type != DataType::kFloat32 && weights.type != DataType::kBfloat16) return false;
  const std::int64_t columns = weights.dims[rank - 1], terms = weights.dims[rank - 2];
  for (std::size_t k = 0; k + 2 < rank; ++k) {
    if (weights.dims[k] != 1) return false;
  }
  if (!IsRow(source, terms) || !IsRow(result, columns)) return false;
  if (d.bias >= 0 && !IsRow(d.operands[d.bias], columns)) return false;
  return std::all_of(d.post.begin(), d.post.end(), [&](const PostOperation& post) {
    if (post.input < 0) return Functions().contains(post.name);
    return Operations().contains(post.name) && StepOf(d.operands[post.input], columns) >= 0;
  });
}

MatrixVector::MatrixVector(const Description& description, int threads)
    : description_(description),
      threads_(threads),
      bfloat16_(description.operands[1].type == DataType::kBfloat16),
      terms_(description.operands[0].dims.back()),
      columns_(description.result().dims.back()) {
  const std::int64_t bytes = terms_ * columns_ * BytesOf(description.operands[1].type);
  const std::int64_t most = std::min(columns_, bytes / kTaskBytes);
  tasks_ = static_cast<int>(std::clamp(most, std::int64_t{1}, std::int64_t{4} * threads));
}

dnnl::memory::desc MatrixVector::weights() const {
  const Operand& given = description_.operands[1];
  std::vector<std::int64_t> strides(given.dims.size(), terms_ * columns_);
  strides[strides.size() - 1] = terms_;
  strides[strides.size() - 2] = 1;
  const auto type = bfloat16_ ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  return dnnl::memory::desc(given.dims, type, strides);
}

void MatrixVector::Run(const std::vector<void*>& data) const {
  threads::Loop(threads_, tasks_, [&](int task) {
    Columns(data, columns_ * task / tasks_, columns_ * (task + 1) / tasks_);
  });
}

void MatrixVector::Columns(const std::vector<void*>& data, std::int64_t first,
                           std::int64_t end) const {
  const std::int64_t count = end - first;
  const auto* source = static_cast<const float*>(data[0]);
  auto* result = static_cast<float*>(data.back()) + first;
  if (bfloat16_) {
    ProductsOfHalves(source, static_cast<const std::uint16_t*>(data[1]) + first * terms_, result,
                     terms_, count);
  } else {
    ProductsOfFloats(source, static_cast<const float*>(data[1]) + first * terms_, result, terms_,
                     count);
  }
  if (description_.bias >= 0) {
    Add(result, static_cast<const float*>(data[description_.bias]) + first, 1, count);
  }
  for (const PostOperation& post : description_.post) {
    if (post.input < 0) {
      Functions().at(post.name)(result, count, post.alpha, post.beta);
      continue;
    }
    const std::int64_t step = StepOf(description_.operands[post.input], columns_);
    const auto* other = static_cast<const float*>(data[post.input]) + first * step;
    Operations().at(post.name)(result, other, step, count);
  }
}

}  // namespace tvm_sched::onednn
