// Normalisation over groups of channels: computes a factor and a summand for each channel.
#ifndef TVM_SCHED_KERNELS_ONEDNN_MOMENTS_H_
#define TVM_SCHED_KERNELS_ONEDNN_MOMENTS_H_

#include <cstdint>
#include <vector>

#include "kernels/onednn/description.h"
#include "kernels/onednn/own_kernel.h"

namespace tvm_sched::onednn {

class Moments final : public OwnKernel {
 public:
  /// Operands: a source (batch, groups, channels of a group, places), whose channels or whose
  /// places lie next to each other; scale and shift, a number for each channel; the result (2,
  /// batch, channels): scale / sqrt(variance + epsilon), and shift - mean times that. `numbers`
  /// holds epsilon. Throws std::invalid_argument.
  Moments(const Description& description, int threads);

  void Run(const std::vector<void*>& data) const final;

 private:
  /// Of this many numbers: their mean, and the sum of their squared distances from it.
  struct Moment {
    double count = 0, mean = 0, squares = 0;

    void Add(double other_count, double other_mean, double other_squares);
  };

  void Finish(const std::vector<Moment>& found, std::int64_t parts, const float* scale,
              const float* shift, float* result) const;

  int threads_;
  bool last_;  // channels lie next to each other
  std::int64_t batch_, groups_, each_, places_;
  double epsilon_;
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_MOMENTS_H_
