// Maximum of windows. oneDNN leaves NaN out, and gives -3.4e38 for windows of minus infinities.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/onednn/own_kernel.h"
#include "kernels/onednn/vector_math.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

constexpr std::int64_t kTaskElements = 16 << 10;  // of the source; fewer are not worth a thread
constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// The maximum so far stays unless x is greater or NaN, so it stays NaN once it is.
inline float Greater(float largest, float x) { return ((x > largest) | (x != x)) ? x : largest; }

/// result[i] = maximum of lines[k][i] over k, of at least one line. Three lines are read at a time.
TVM_SCHED_VERSIONS void OfLines(const float* const* lines, std::int64_t count, float* result,
                                std::int64_t length) {
  const float *a = lines[0], *b = lines[count > 1 ? 1 : 0];
  std::int64_t next = 2;
  if (count % 2 == 0 || count == 1) {
#pragma omp simd
    for (std::int64_t i = 0; i < length; ++i) result[i] = Greater(a[i], b[i]);
    a = result;
  } else {
    next = 1;
  }
  for (; next < count; next += 2, a = result) {
    const float* c = lines[next + 1];
    b = lines[next];
#pragma omp simd
    for (std::int64_t i = 0; i < length; ++i) result[i] = Greater(Greater(a[i], b[i]), c[i]);
  }
}

/// result[i] = maximum of line[i * stride + k * step] over k.
TVM_SCHED_VERSIONS void OfWindows(const float* line, std::int64_t kernel, std::int64_t step,
                                  std::int64_t stride, float* result, std::int64_t length) {
  std::fill_n(result, length, kLowest);
  for (std::int64_t k = 0; k < kernel; ++k) {
    const float* from = line + k * step;
    if (stride == 2) {
#pragma omp simd
      for (std::int64_t i = 0; i < length; ++i) result[i] = Greater(result[i], from[2 * i]);
    } else {
      for (std::int64_t i = 0; i < length; ++i) result[i] = Greater(result[i], from[i * stride]);
    }
  }
}

/// Whether a tensor is stored without gaps, with channels after or before the image.
bool IsDense(const Operand& operand, bool channels_last) {
  std::int64_t expected = 1;
  const auto follows = [&](std::size_t axis) {
    const std::int64_t size = operand.dims[axis];
    const bool fits = size <= 1 || operand.strides[axis] == expected;
    expected *= size;
    return fits;
  };
  bool dense = !channels_last || follows(1);
  for (std::size_t axis = operand.dims.size(); axis-- > 2;) dense = follows(axis) && dense;
  dense = (channels_last || follows(1)) && dense;
  return (follows(0) && dense) || expected == 0;
}

/// Tensors of one to three dimensions besides batch and channels, with channels first or last. The
/// maximum of numbers with a NaN is NaN; padding is minus infinity.
class MaxPool final : public OwnKernel {
 public:
  MaxPool(const Description& description, int threads) : threads_(threads) {
    const auto check = [](bool holds) {
      if (!holds) throw std::invalid_argument("the operands of a max_pool do not fit together");
    };
    check(description.operands.size() == 2);
    const Operand &source = description.operands[0], &result = description.operands[1];
    const std::size_t rank = source.dims.size(), count = rank - 2;
    check(rank >= 3 && rank <= 5 && result.dims.size() == rank);
    check(source.dims[0] == result.dims[0] && source.dims[1] == result.dims[1]);
    for (const auto* each : {&description.kernel, &description.strides, &description.dilation,
                             &description.padding_low}) {
      check(each->size() == count);
    }
    const std::int64_t channels = source.dims[1];
    // Where both orders fit, they are the same in memory: the longer lines are faster.
    const bool last = channels > 1 && IsDense(source, true) && IsDense(result, true);
    check(last || (IsDense(source, false) && IsDense(result, false)));
    outer_ = source.dims[0] * (last ? 1 : channels);
    inner_ = last ? channels : 1;
    for (std::size_t d = rank; d-- > 2;) {
      const std::size_t k = d - 2;
      Axis& axis = axes_[3 - count + k];
      axis = {source.dims[d],
              result.dims[d],
              description.kernel[k],
              description.strides[k],
              description.dilation[k] + 1,
              description.padding_low[k]};
      check(axis.size >= 0 && axis.out > 0 && axis.kernel > 0 && axis.stride > 0 && axis.step > 0);
      check(axis.padding >= 0 && axis.padding < axis.kernel * axis.step);
    }
  }

  void Run(const std::vector<void*>& data) const override {
    const auto* source = static_cast<const float*>(data[0]);
    auto* result = static_cast<float*>(data[1]);
    const std::int64_t rows = outer_ * axes_[0].out * axes_[1].out;
    const std::int64_t elements = outer_ * axes_[0].size * axes_[1].size * axes_[2].size * inner_;
    const std::int64_t most = std::max<std::int64_t>(1, elements / kTaskElements);
    const std::int64_t tasks = std::min({rows, most, std::int64_t{4} * threads_});
    threads::Loop(threads_, static_cast<int>(tasks), [&](int task) {
      Rows(source, result, rows * task / tasks, rows * (task + 1) / tasks);
    });
  }

 private:
  /// Along one dimension of the image.
  struct Axis {
    std::int64_t size = 1, out = 1, kernel = 1, stride = 1, step = 1, padding = 0;
  };

  /// Rows of the result, the last dimension of the image and what is inside of it.
  void Rows(const float* source, float* result, std::int64_t first, std::int64_t end) const {
    const auto& [depth, height, width] = axes_;
    const std::int64_t length = width.size * inner_;
    // A line of the source's largest numbers, with the padding on both sides.
    const std::int64_t reach =
        (width.out - 1) * width.stride + (width.kernel - 1) * width.step + 1 - width.padding;
    const std::int64_t whole = width.padding + std::max(reach, width.size);
    std::vector<float> line(whole * inner_, kLowest);
    float* const middle = line.data() + width.padding * inner_;
    std::vector<const float*> lines;
    for (std::int64_t row = first; row < end; ++row) {
      const std::int64_t image = row / (depth.out * height.out);
      const std::int64_t z = row / height.out % depth.out * depth.stride - depth.padding;
      const std::int64_t y = row % height.out * height.stride - height.padding;
      lines.clear();
      for (std::int64_t j = 0; j < depth.kernel; ++j) {
        const std::int64_t at = z + j * depth.step;
        if (at < 0 || at >= depth.size) continue;
        for (std::int64_t k = 0; k < height.kernel; ++k) {
          const std::int64_t place = y + k * height.step;
          if (place < 0 || place >= height.size) continue;
          lines.push_back(source + ((image * depth.size + at) * height.size + place) * length);
        }
      }
      if (lines.empty()) {
        std::fill_n(middle, length, kLowest);
      } else {
        OfLines(lines.data(), static_cast<std::int64_t>(lines.size()), middle, length);
      }
      float* out = result + row * width.out * inner_;
      if (inner_ == 1 && width.stride > 1) {
        OfWindows(line.data(), width.kernel, width.step, width.stride, out, width.out);
        continue;
      }
      // Where windows lie next to each other, all of them are one line.
      const std::int64_t together = width.stride == 1 ? width.out : 1;
      lines.resize(width.kernel);
      for (std::int64_t x = 0; x < width.out; x += together) {
        for (std::int64_t k = 0; k < width.kernel; ++k) {
          lines[k] = line.data() + (x * width.stride + k * width.step) * inner_;
        }
        OfLines(lines.data(), width.kernel, out + x * inner_, together * inner_);
      }
    }
  }

  int threads_;
  Axis axes_[3];            // depth, height, width
  std::int64_t outer_ = 1;  // images that lie one after the other: the batch, or its channels
  std::int64_t inner_ = 1;  // numbers of a place: the channels, or 1
};

}  // namespace

std::unique_ptr<OwnKernel> MakeMaxPool(const Description& description, int threads) {
  return std::make_unique<MaxPool>(description, threads);
}

}  // namespace tvm_sched::onednn
