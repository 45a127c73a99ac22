// Maximum of windows. oneDNN leaves NaN out, and gives -3.4e38 for windows of minus infinities.
#ifndef TVM_SCHED_KERNELS_ONEDNN_MAX_POOL_H_
#define TVM_SCHED_KERNELS_ONEDNN_MAX_POOL_H_

#include <cstdint>
#include <vector>

#include "kernels/onednn/own_kernel.h"

namespace tvm_sched::onednn {

/// Tensors of one to three dimensions besides batch and channels, with channels first or last. The
/// maximum of numbers with a NaN is NaN; padding is minus infinity.
class MaxPool final : public OwnKernel {
 public:
  MaxPool(const Description& description, int threads);

  void Run(const std::vector<void*>& data) const override;

 private:
  /// Along one dimension of the image.
  struct Axis {
    std::int64_t size = 1, out = 1, kernel = 1, stride = 1, step = 1, padding = 0;
  };

  /// Rows of the result, the last dimension of the image and what is inside of it.
  void Rows(const float* source, float* result, std::int64_t first, std::int64_t end) const;

  int threads_;
  Axis axes_[3];            // depth, height, width
  std::int64_t outer_ = 1;  // images that lie one after the other: the batch, or its channels
  std::int64_t inner_ = 1;  // numbers of a place: the channels, or 1
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_MAX_POOL_H_
