#include "kernels/onednn/plain_values.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "kernels/onednn/finite_operations.h"

namespace tvm_sched::onednn {

namespace {

using Position = std::vector<std::int64_t>;

constexpr double kRounding =
    1e-5;  // of the largest number on the way, which is taken as 1 at least
constexpr double kApproximation = 1e-4;  // of functions such as exp
constexpr float kNudge = 1e-6F;          // what a sum may be rounded by before it is post-processed

std::int64_t Volume(const std::vector<std::int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

/// The place in one dimension of the source that a place of the window falls on.
std::optional<std::int64_t> SourcePlace(const Description& d, std::size_t k, std::int64_t result,
                                        std::int64_t window) {
  const std::int64_t step = window * (d.dilation[k] + 1), extent = d.operands[0].dims[k + 2];
  std::int64_t place = result * d.strides[k] - d.padding_low[k] + step;
  if (d.primitive == "deconvolution") {
    place = result + d.padding_low[k] - step;
    if (place % d.strides[k] != 0) return std::nullopt;
    place /= d.strides[k];
  }
  if (place < 0 || place >= extent) return std::nullopt;
  return place;
}

/// For each place of the window that does not lie in the padding: its number, and the offset of its
/// element in the first channel of an image.
template <typename Visit>
void ForPlaces(const Description& d, const std::vector<std::int64_t>& window,
               const Position& position, const Visit& visit) {
  const Operand& source = d.operands[0];
  Position place(window.size());
  for (std::int64_t left = Volume(window); left > 0; --left) {
    std::int64_t offset = 0;
    bool inside = true;
    for (std::size_t k = 0; k < window.size() && inside; ++k) {
      const auto found = SourcePlace(d, k, position[k + 2], place[k]);
      inside = found.has_value();
      if (inside) offset += *found * source.strides[k + 2];
    }
    if (inside) visit(place, offset);
    for (std::size_t k = window.size(); k-- > 0 && ++place[k] == window[k];) place[k] = 0;
  }
}

/// Dimensions of a convolution's window.
std::vector<std::int64_t> WindowOf(const Description& d) {
  const std::vector<std::int64_t>& dims = d.operands[1].dims;
  return {dims.end() - static_cast<std::ptrdiff_t>(d.strides.size()), dims.end()};
}

bool IsConvolution(const Description& d) {
  return d.primitive == "convolution" || d.primitive == "deconvolution";
}

}  // namespace

PlainValues::PlainValues(const Description& description, std::vector<const float*> inputs)
    : d_(description), inputs_(std::move(inputs)) {}

std::int64_t PlainValues::terms() const {
  const std::vector<std::int64_t>& source = d_.operands[0].dims;
  if (IsConvolution(d_)) {
    const std::size_t first = d_.operands[1].dims.size() - d_.strides.size() - 1;
    return Volume({d_.operands[1].dims.begin() + static_cast<std::ptrdiff_t>(first),
                   d_.operands[1].dims.end()});
  }
  if (d_.primitive == "pooling") return Volume(d_.kernel);
  if (d_.primitive == "local_response_normalization")
    return static_cast<std::int64_t>(d_.numbers[0]);
  return source.back();
}

double PlainValues::Sum(const Position& position) const {
  if (IsConvolution(d_)) return Window(position);
  if (d_.primitive == "matmul") return Product(position);
  if (d_.primitive == "pooling") return Average(position);
  if (d_.primitive == "local_response_normalization") return LocalResponse(position);
  if (d_.primitive == "layer_normalization") return LayerNormalization(position);
  throw std::invalid_argument("values of a \"" + d_.primitive + "\" cannot be checked");
}

PlainValues::Value PlainValues::At(const Position& position) const {
  double sum = Sum(position);
  if (d_.bias >= 0) {
    const Operand& bias = d_.operands[d_.bias];
    const bool channels = bias.dims.size() == 1;
    sum += inputs_[d_.bias][channels ? position[1] * bias.strides[0] : bias.OffsetOf(position)];
  }
  if (d_.post.empty()) {
    const bool computed =
        IsConvolution(d_) || d_.primitive == "matmul" || d_.primitive == "pooling";
    return {sum, (computed ? kRounding : kApproximation) * std::max(1.0, std::abs(sum))};
  }
  float largest = 1;
  const auto after = [&](float value) {
    return static_cast<double>(AfterPost(d_, value, position, inputs_, &largest));
  };
  const auto middle = static_cast<float>(sum);
  const float nudge = kNudge * std::max(1.0F, std::abs(middle));
  const double value = after(middle), low = after(middle - nudge), high = after(middle + nudge);
  const double steep = std::abs(low - value) + std::abs(high - value);
  return {value, kApproximation * largest + steep};
}

double PlainValues::Window(const Position& position) const {
  const Operand &source = d_.operands[0], &weights = d_.operands[1];
  const std::vector<std::int64_t> window = WindowOf(d_);
  const std::size_t first = weights.dims.size() - window.size() - 2;  // 1 where there are groups
  const std::int64_t outputs = weights.dims[first], inputs = weights.dims[first + 1];
  const std::int64_t group = position[1] / outputs;
  const float* image =
      inputs_[0] + position[0] * source.strides[0] + group * inputs * source.strides[1];
  const float* filter = inputs_[1] + position[1] % outputs * weights.strides[first] +
                        (first > 0 ? group * weights.strides[0] : 0);
  double sum = 0;
  ForPlaces(d_, window, position, [&](const Position& place, std::int64_t offset) {
    const float* x = image + offset;
    const float* w = filter;
    for (std::size_t k = 0; k < place.size(); ++k) w += place[k] * weights.strides[first + 2 + k];
    for (std::int64_t i = 0; i < inputs; ++i) {
      sum += (x[i * source.strides[1]] - static_cast<double>(d_.source_zero)) *
             w[i * weights.strides[first + 1]];
    }
  });
  return sum;
}

double PlainValues::Average(const Position& position) const {
  const Operand& source = d_.operands[0];
  const float* image =
      inputs_[0] + position[0] * source.strides[0] + position[1] * source.strides[1];
  double sum = 0;
  std::int64_t inside = 0;
  ForPlaces(d_, d_.kernel, position, [&](const Position&, std::int64_t offset) {
    sum += image[offset];
    ++inside;
  });
  return sum / static_cast<double>(d_.algorithm == "average" ? inside : Volume(d_.kernel));
}

double PlainValues::Product(const Position& position) const {
  const Operand &source = d_.operands[0], &weights = d_.operands[1];
  Position row = position, column = position;
  row.back() = 0;
  column[column.size() - 2] = 0;
  const float* x = inputs_[0] + source.OffsetOf(row);
  const float* w = inputs_[1] + weights.OffsetOf(column);
  const std::int64_t next = source.strides.back(), below = weights.strides[column.size() - 2];
  double sum = 0;
  for (std::int64_t k = 0; k < source.dims.back(); ++k) {
    sum += (x[k * next] - static_cast<double>(d_.source_zero)) * w[k * below];
  }
  return sum;
}

double PlainValues::LocalResponse(const Position& position) const {
  const Operand& source = d_.operands[0];
  const double size = d_.numbers[0], alpha = d_.numbers[1], beta = d_.numbers[2];
  const auto half = static_cast<std::int64_t>(size - 1) / 2;
  const std::int64_t last = std::min(position[1] + half, source.dims[1] - 1);
  double squares = 0;
  Position place = position;
  for (place[1] = std::max<std::int64_t>(0, position[1] - half); place[1] <= last; ++place[1]) {
    const double x = inputs_[0][source.OffsetOf(place)];
    squares += x * x;
  }
  return inputs_[0][source.OffsetOf(position)] *
         std::pow(d_.numbers[3] + alpha / size * squares, -beta);
}

double PlainValues::LayerNormalization(const Position& position) const {
  const Operand& source = d_.operands[0];
  Position first = position;
  first.back() = 0;
  const float* x = inputs_[0] + source.OffsetOf(first);
  const std::int64_t count = source.dims.back(), next = source.strides.back();
  double sum = 0, squares = 0;
  for (std::int64_t k = 0; k < count; ++k) sum += x[k * next];
  const double mean = sum / static_cast<double>(count);
  for (std::int64_t k = 0; k < count; ++k) squares += (x[k * next] - mean) * (x[k * next] - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(count) + d_.numbers.at(0));
  const std::int64_t place = position.back();
  return (x[place * next] - mean) / deviation * inputs_[1][place * d_.operands[1].strides.back()] +
         inputs_[2][place * d_.operands[2].strides.back()];
}

}  // namespace tvm_sched::onednn
