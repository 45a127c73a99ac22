#include "kernels/onednn/value_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/onednn/finite_operations.h"
#include "kernels/onednn/vector_math.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

// Bounds hold for exact arithmetic; rounding adds far less than a factor of 10 to sums in float32.
constexpr double kSafe = std::numeric_limits<float>::max() / 10.0;

constexpr std::int64_t kTaskElements = 32 << 10;  // fewer are not worth another thread
constexpr int kLanes = 16, kUnrolled = 4;
using Integers = VectorOf<std::int32_t, kLanes>::Type;
constexpr std::int32_t kInfinity = 0x7f800000;

/// The largest float32 without its sign, as an integer: these are ordered as their magnitudes are,
/// NaN above infinity.
TVM_SCHED_VERSIONS std::int32_t LargestBits(const float* values, std::int64_t count) {
  Integers largest[kUnrolled] = {}, x;
  std::int64_t k = 0;
  for (; k + kUnrolled * kLanes <= count; k += kUnrolled * kLanes) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnrolled; ++u) {
      std::memcpy(&x, values + k + u * kLanes, sizeof x);
      x &= 0x7fffffff;
      largest[u] = x > largest[u] ? x : largest[u];
    }
  }
  std::int32_t result = 0;
  for (; k < count; ++k) {
    std::int32_t bits;
    std::memcpy(&bits, values + k, sizeof bits);
    result = std::max(result, bits & 0x7fffffff);
  }
  for (const Integers& each : largest) {
    for (int lane = 0; lane < kLanes; ++lane) result = std::max(result, each[lane]);
  }
  return result;
}

double OfBits(std::int32_t bits) {
  if (bits >= kInfinity) return kUnbounded;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::int64_t Product(const std::vector<std::int64_t>& dims) {
  std::int64_t product = 1;
  for (std::int64_t dim : dims) product *= dim;
  return product;
}

/// How many products are added for an element of the result; nothing if the kernel adds none.
std::optional<double> Terms(const Description& d) {
  const std::string& name = d.primitive;
  if (name == "matmul") return static_cast<double>(d.operands[0].dims.back());
  if (name == "line_convolution") return static_cast<double>(d.operands[1].dims[0]);
  if (name != "convolution" && name != "deconvolution") return std::nullopt;
  return static_cast<double>(Product(d.operands[1].dims)) / static_cast<double>(d.result().dims[1]);
}

/// Whether no element of the result is of larger magnitude than all of the inputs.
bool Selects(const std::string& primitive) {
  return primitive == "max_pool" || primitive == "pooling" || primitive == "concatenation";
}

/// A bound after an elementwise operation of numbers within `x`; unbounded if it may make NaN or
/// infinities of them.
double After(const PostOperation& post, double x) {
  const double a = std::abs(post.alpha), b = std::abs(post.beta);
  const std::string& name = post.name;
  if (name == "relu") return x * std::max(1.0, a);
  if (name == "clip") {
    const bool closed = std::max(a, b) < std::numeric_limits<float>::max();
    if (closed) return std::max(a, b);
    return std::max(x, std::min(a, b) < std::numeric_limits<float>::max() ? std::min(a, b) : 0.0);
  }
  if (name == "linear") return a * x + b;
  if (name == "sigmoid" || name == "tanh" || name == "hard_sigmoid") return 1;
  if (name == "elu") return std::max(x, a);
  if (name == "square") return x * x;
  if (name == "exp") return std::exp(x);
  if (name == "softplus") return a > 0 ? x + std::log(2.0) / a : kUnbounded;
  // The logarithm and the square root of a negative number are NaN.
  const bool smaller = name == "gelu" || name == "gelu_tanh" || name == "silu" || name == "mish" ||
                       name == "hard_swish" || name == "abs";
  return smaller ? x : kUnbounded;
}

double After(const PostOperation& post, double x, double other) {
  const std::string& name = post.name;
  if (name == "add" || name == "subtract") return x + other;
  if (name == "multiply") return x * other;
  if (name == "maximum" || name == "minimum") return std::max(x, other);
  if (name == "prelu") return x * std::max(1.0, other);
  return kUnbounded;  // the divisor may be 0
}

}  // namespace

double ValueBounds::Of(int value) const {
  if (value < 0) return kUnbounded;
  const double bound = bounds_[value].largest.load(std::memory_order_acquire);
  return bound < 0 ? kUnbounded : bound;
}

void ValueBounds::Raise(int value, double bound) {
  std::atomic<double>& largest = bounds_[value].largest;
  double known = largest.load(std::memory_order_relaxed);
  while (known < bound && !largest.compare_exchange_weak(known, bound, std::memory_order_release)) {
  }
}

std::vector<bool> BoundsNeeded(const std::vector<std::pair<std::string, Description>>& kernels,
                               int cores) {
  std::vector<bool> needed;
  const auto note = [&](int value) {
    if (value < 0) return false;
    if (static_cast<std::size_t>(value) >= needed.size()) needed.resize(value + 1);
    const bool is_new = !needed[value];
    needed[value] = true;
    return is_new;
  };
  const auto is_needed = [&](int value) {
    return value >= 0 && static_cast<std::size_t>(value) < needed.size() && needed[value];
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (auto kernel = kernels.rbegin(); kernel != kernels.rend(); ++kernel) {
      const Description& d = kernel->second;
      const bool looks = NeedsFinite(d) && d.cores.Of(cores) > 1;
      const bool hands_on = is_needed(d.result().value) && (Terms(d) || Selects(d.primitive));
      if (!looks && !hands_on) continue;
      for (std::size_t k = 0; k + 1 < d.operands.size(); ++k) {
        changed = note(d.operands[k].value) || changed;
      }
    }
  }
  return needed;
}

Bounds BoundsOf(const Description& d, const std::vector<double>& inputs) {
  Bounds found;
  if (*std::max_element(inputs.begin(), inputs.end()) >= kUnbounded) return found;
  double x;
  if (const std::optional<double> terms = Terms(d)) {
    x = *terms * inputs[0] * inputs[1] + (d.bias < 0 ? 0 : inputs[d.bias]);
  } else if (Selects(d.primitive)) {
    x = *std::max_element(inputs.begin(), inputs.end());
  } else {
    return found;
  }
  for (const PostOperation& post : d.post) {
    if (!(x < kSafe)) {  // so may be all that follows
      if (NeedsFinite(post)) return found;
      continue;
    }
    x = post.input < 0 ? After(post, x) : After(post, x, inputs[post.input]);
  }
  return {true, x < kSafe ? x : kUnbounded};
}

double Magnitude(const Operand& operand, const void* data, int threads) {
  const std::int64_t count = operand.elements();
  if (operand.type == DataType::kBfloat16) {  // the upper half of a float32
    const auto* halves = static_cast<const std::uint16_t*>(data);
    std::int32_t largest = 0;
    for (std::int64_t k = 0; k < count; ++k) largest = std::max(largest, halves[k] & 0x7fff);
    return OfBits(largest << 16);
  }
  if (operand.type != DataType::kFloat32) {
    return std::ldexp(1.0, static_cast<int>(8 * BytesOf(operand.type)));
  }
  const auto* values = static_cast<const float*>(data);
  std::atomic<std::int32_t> largest{0};
  const std::int64_t tasks = (count + kTaskElements - 1) / kTaskElements;
  threads::Loop(threads, static_cast<int>(tasks), [&](int task) {
    const std::int64_t first = task * kTaskElements;
    const std::int32_t found = LargestBits(values + first, std::min(kTaskElements, count - first));
    std::int32_t known = largest.load(std::memory_order_relaxed);
    while (known < found && !largest.compare_exchange_weak(known, found)) {
    }
  });
  return OfBits(largest);
}

}  // namespace tvm_sched::onednn
