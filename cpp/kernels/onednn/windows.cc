#include "kernels/onednn/windows.h"

#include <algorithm>
#include <stdexcept>

#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

constexpr std::int64_t kTaskRows = 64;

}  // namespace

Windows::Windows(const Description& description) {
  const Operand& source = description.operands[0];
  const bool fits = source.dims.size() == 3 && description.result().dims.size() == 2 &&
                    description.kernel.size() == 1 && description.strides.size() == 1 &&
                    description.padding_low.size() == 1 && description.kernel[0] > 0 &&
                    description.strides[0] > 0 && description.padding_low[0] >= 0 &&
                    source.type == DataType::kFloat32 && source.dims[0] > 0 &&
                    description.result().dims[0] % source.dims[0] == 0;
  if (!fits) throw std::invalid_argument("the operands of a line convolution do not fit together");
  batch_ = source.dims[0], length_ = source.dims[1], channels_ = source.dims[2];
  kernel_ = description.kernel[0], stride_ = description.strides[0];
  padding_ = description.padding_low[0];
  places_ = description.result().dims[0] / batch_;
}

void Windows::Copy(const float* source, float* rows, int threads) const {
  const std::int64_t count = (Windows::rows() + kTaskRows - 1) / kTaskRows;
  threads::Loop(threads, static_cast<int>(count), [&](int task) {
    const std::int64_t end = std::min(Windows::rows(), (task + 1) * kTaskRows);
    for (std::int64_t row = task * kTaskRows; row < end; ++row) {
      const std::int64_t begin = row % places_ * stride_ - padding_;  // of the window
      const std::int64_t low = std::clamp(-begin, std::int64_t{0}, kernel_);
      const std::int64_t high = std::clamp(length_ - begin, low, kernel_);
      float* out = rows + row * columns();
      std::fill_n(out, low * channels_, 0.0f);
      if (high > low) {
        const float* from = source + (row / places_ * length_ + begin + low) * channels_;
        std::copy_n(from, (high - low) * channels_, out + low * channels_);
      }
      std::fill_n(out + high * channels_, (kernel_ - high) * channels_, 0.0f);
    }
  });
}

}  // namespace tvm_sched::onednn
