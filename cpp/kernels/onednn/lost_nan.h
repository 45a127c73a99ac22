// NaN that oneDNN loses: some of the operations that it fuses to a product give a number for NaN.
#ifndef TVM_SCHED_KERNELS_ONEDNN_LOST_NAN_H_
#define TVM_SCHED_KERNELS_ONEDNN_LOST_NAN_H_

#include <cstdint>
#include <vector>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// Whether oneDNN's version of an operation gives a number for NaN.
bool LosesNan(const PostOperation& post);

/// Whether a post-operation of the kernel gives a number for NaN.
bool LosesNan(const Description& description);

/// The processor's flag of invalid operations, of the calling thread. Whoever makes a NaN of
/// numbers raises it, and so do the instructions that lose one: comparisons, minimum and maximum.
class InvalidFlag {
 public:
  static void Clear();
  static bool Raised();
};

/// Make NaN of the elements of the result that are NaN by the description's post-operations, the
/// others stay. `sums` are the results before these operations, `data` the addresses of all
/// operands.
void RestoreNan(const Description& description, const float* sums, const std::vector<void*>& data);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_LOST_NAN_H_
