// Attention, softmax(scale * query * key^T + mask) * value, a few rows at a time: the scores of all
// rows never exist.
#ifndef TVM_SCHED_KERNELS_ONEDNN_ATTENTION_H_
#define TVM_SCHED_KERNELS_ONEDNN_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "kernels/onednn/description.h"
#include "kernels/onednn/own_kernel.h"

namespace tvm_sched::onednn {

class Attention final : public OwnKernel {
 public:
  /// Operands: query (batch, heads, rows, width), key (batch, heads, keys, width), value (batch,
  /// heads, keys, value width), a mask to be added whose dimensions may be 1 where there are four
  /// inputs, result. `numbers` holds the scale; the algorithm "safe" gives 0 where the mask leaves
  /// no key, "plain" NaN. Throws std::invalid_argument where shapes do not fit.
  Attention(const Description& description, int threads);

  void Run(const std::vector<void*>& data) const final;

 private:
  struct Data {
    const float* query;
    const float* key;
    const float* value;
    const float* mask;  // may be null
    float* result;
  };
  /// Rows of one head.
  void Block(const Data& data, std::int64_t batch, std::int64_t head, std::int64_t first,
             std::int64_t rows) const;
  void AddMask(const float* mask, std::int64_t first, std::int64_t rows, float* scores) const;

  Operand query_, key_, value_, mask_, result_;
  bool masked_, safe_;
  float scale_;
  int threads_;
  std::int64_t batch_, heads_, rows_, keys_, width_, value_width_;
  std::int64_t block_;  // rows that are computed together
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_ATTENTION_H_
