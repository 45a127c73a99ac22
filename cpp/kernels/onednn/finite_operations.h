// Operations that oneDNN fuses to a product and computes right for finite numbers alone: some give
// a number for NaN, one gives NaN for infinity.
#ifndef TVM_SCHED_KERNELS_ONEDNN_FINITE_OPERATIONS_H_
#define TVM_SCHED_KERNELS_ONEDNN_FINITE_OPERATIONS_H_

#include <cstdint>
#include <vector>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// Whether oneDNN's version of an operation may be wrong unless its input is a finite number.
bool NeedsFinite(const PostOperation& post);

/// Whether a post-operation of the kernel does.
bool NeedsFinite(const Description& description);

/// The processor's flag of invalid operations, of the calling thread. An instruction that makes a
/// NaN of numbers raises it, and so do those that lose one: comparisons, minimum and maximum.
class InvalidFlag {
 public:
  static void Clear();
  static bool Raised();
};

/// An element of the result, at this position, from its sum before the post-operations. `inputs`:
/// the addresses of the operands. `largest` is raised to the largest magnitude on the way.
float AfterPost(const Description& description, float sum,
                const std::vector<std::int64_t>& position, const std::vector<const float*>& inputs,
                float* largest);

/// Correct the elements of the result that are NaN either by the description's post-operations or
/// by oneDNN, but not by both; the others stay. `sums` are the results before these operations,
/// `data` the addresses of all operands.
void CorrectNan(const Description& description, const float* sums, const std::vector<void*>& data);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_FINITE_OPERATIONS_H_
