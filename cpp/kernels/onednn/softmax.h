// Softmax and its logarithm along any dimension, vectorised along memory.
#ifndef TVM_SCHED_KERNELS_ONEDNN_SOFTMAX_H_
#define TVM_SCHED_KERNELS_ONEDNN_SOFTMAX_H_

#include <cstdint>
#include <vector>

#include "kernels/onednn/description.h"
#include "kernels/onednn/own_kernel.h"

namespace tvm_sched::onednn {

class Softmax final : public OwnKernel {
 public:
  /// Operands: a compact source and a result of the same dimensions; `axis`; the algorithm
  /// "accurate" or "log". Throws std::invalid_argument.
  Softmax(const Description& description, int threads);

  void Run(const std::vector<void*>& data) const final;

 private:
  bool log_;
  int threads_;
  std::int64_t outer_ = 1, count_, inner_ = 1;
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_SOFTMAX_H_
