#include "kernels/onednn/finite_operations.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <map>
#include <string>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace tvm_sched::onednn {

namespace {

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

using Elementwise = float (*)(float x, float a, float b);

const std::map<std::string, Elementwise>& Functions() {
  static const std::map<std::string, Elementwise> known{
      {"relu", [](float x, float a, float) { return x < 0 ? (a == 0 ? 0 : a * x) : x; }},
      {"clip", [](float x, float a, float b) { return x < a   ? a
                                                      : x > b ? b
                                                              : x; }},
      {"sigmoid", [](float x, float, float) { return Sigmoid(x); }},
      {"tanh", [](float x, float, float) { return std::tanh(x); }},
      {"gelu", [](float x, float, float) { return x * (1 + std::erf(x * 0.70710678f)) / 2; }},
      {"gelu_tanh",
       [](float x, float, float) { return x * Sigmoid(1.5957691f * (x + 0.044715f * x * x * x)); }},
      {"silu", [](float x, float a, float) { return x * Sigmoid(a * x); }},
      {"linear", [](float x, float a, float b) { return a * x + b; }},
      {"exp", [](float x, float, float) { return std::exp(x); }},
      {"log", [](float x, float, float) { return std::log(x); }},
      {"abs", [](float x, float, float) { return std::abs(x); }},
      {"sqrt", [](float x, float, float) { return std::sqrt(x); }},
      {"square", [](float x, float, float) { return x * x; }},
      {"elu", [](float x, float a, float) { return x > 0 ? x : a * std::expm1(x); }},
      {"mish", [](float x, float, float) { return x * std::tanh(std::log1p(std::exp(x))); }},
      {"softplus", [](float x, float a, float) { return std::log1p(std::exp(a * x)) / a; }},
      {"hard_sigmoid",
       [](float x, float a, float b) {
         const float y = a * x + b;
         return y < 0 ? 0 : y > 1 ? 1 : y;
       }},
      {"hard_swish", [](float x, float a, float b) {
         const float y = a * x + b;
         return x * (y < 0 ? 0 : y > 1 ? 1 : y);
       }}};
  return known;
}

using Binary = float (*)(float x, float y);

const std::map<std::string, Binary>& Operations() {
  static const std::map<std::string, Binary> known{
      {"add", [](float x, float y) { return x + y; }},
      {"subtract", [](float x, float y) { return x - y; }},
      {"multiply", [](float x, float y) { return x * y; }},
      {"divide", [](float x, float y) { return x / y; }},
      {"maximum", [](float x, float y) { return x > y || std::isnan(x) ? x : y; }},
      {"minimum", [](float x, float y) { return x < y || std::isnan(x) ? x : y; }},
      {"prelu", [](float x, float y) { return x < 0 ? x * y : x; }}};
  return known;
}

}  // namespace

bool NeedsFinite(const PostOperation& post) {
  if (post.name == "relu") return post.alpha == 0;
  return post.name == "clip" || post.name == "exp" || post.name == "hard_sigmoid" ||
         post.name == "maximum" || post.name == "minimum" || post.name == "gelu";
}

bool NeedsFinite(const Description& description) {
  if (description.result().type != DataType::kFloat32) return false;
  // Deconvolutions without a kernel for the layout compute a sigmoid that is 0 for NaN.
  const bool transposed = description.primitive == "deconvolution";
  return std::any_of(
      description.post.begin(), description.post.end(), [=](const PostOperation& post) {
        return NeedsFinite(post) || (transposed && (post.name == "sigmoid" || post.name == "silu"));
      });
}

// The functions of <cfenv> also read and write the flags of the x87 unit, which takes longer.
#ifdef __SSE__
void InvalidFlag::Clear() { _MM_SET_EXCEPTION_STATE(0); }
bool InvalidFlag::Raised() { return (_MM_GET_EXCEPTION_STATE() & _MM_EXCEPT_INVALID) != 0; }
#else
void InvalidFlag::Clear() { std::feclearexcept(FE_INVALID); }
bool InvalidFlag::Raised() { return std::fetestexcept(FE_INVALID) != 0; }
#endif

float AfterPost(const Description& description, float sum,
                const std::vector<std::int64_t>& position, const std::vector<const float*>& inputs,
                float* largest) {
  float value = sum;
  const auto note = [largest](float x) { *largest = std::max(*largest, std::abs(x)); };
  note(value);
  for (const PostOperation& post : description.post) {
    if (post.input < 0) {
      value = Functions().at(post.name)(value, post.alpha, post.beta);
    } else {
      const float other = inputs[post.input][description.operands[post.input].OffsetOf(position)];
      note(other);
      value = Operations().at(post.name)(value, other);
    }
    note(value);
  }
  return value;
}

void CorrectNan(const Description& description, const float* sums, const std::vector<void*>& data) {
  const Operand& result = description.result();
  auto* out = static_cast<float*>(data.back());
  std::vector<const float*> inputs;
  for (const void* address : data) inputs.push_back(static_cast<const float*>(address));
  std::vector<std::int64_t> position(result.dims.size());
  for (std::int64_t left = result.elements(); left > 0; --left) {
    const std::int64_t place = result.OffsetOf(position);
    float largest = 0;
    const float value = AfterPost(description, sums[place], position, inputs, &largest);
    if (std::isnan(value) != std::isnan(out[place])) out[place] = value;
    for (std::size_t d = position.size(); d-- > 0 && ++position[d] == result.dims[d];) {
      position[d] = 0;
    }
  }
}

}  // namespace tvm_sched::onednn
