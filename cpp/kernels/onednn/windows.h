// The windows of a convolution over one dimension as rows of a matrix.
#ifndef TVM_SCHED_KERNELS_ONEDNN_WINDOWS_H_
#define TVM_SCHED_KERNELS_ONEDNN_WINDOWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// Windows that overlap are no matrix that oneDNN's fast products take, so they are copied.
class Windows {
 public:
  /// Of a "line_convolution": a compact source (batch, length, channels); `kernel`, `strides` and
  /// `padding_low` of one dimension; a result of batch * places rows. Throws std::invalid_argument.
  explicit Windows(const Description& description);

  std::int64_t rows() const { return batch_ * places_; }
  std::int64_t columns() const { return kernel_ * channels_; }
  std::size_t bytes() const { return sizeof(float) * rows() * columns(); }

  /// Write all rows; what lies in the padding is 0.
  void Copy(const float* source, float* rows, int threads) const;

 private:
  std::int64_t batch_, length_, channels_, kernel_, stride_, padding_, places_;
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_WINDOWS_H_
