// Our own kernels besides oneDNN's primitives, for what oneDNN lacks or computes slowly.
#ifndef TVM_SCHED_KERNELS_ONEDNN_OWN_KERNEL_H_
#define TVM_SCHED_KERNELS_ONEDNN_OWN_KERNEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/onednn/description.h"
#include "kernels/onednn/packed.h"

namespace tvm_sched::onednn {

class OwnKernel {
 public:
  virtual ~OwnKernel() = default;

  /// Lay out weights, operand 1, unless they are null or as they were at the last call:
  /// `generation` counts changes of parameters. Kernels of a module share what lies in `packed`.
  /// Returns whether it did, so that the tensor is no longer read.
  virtual bool LayOut(const std::vector<void*>& /*data*/, std::uint64_t /*generation*/,
                      PackedParameters* /*packed*/) {
    return false;
  }

  /// Free what LayOut made; the next LayOut makes it anew.
  virtual void ReleaseWeights() {}

  /// The addresses of all operands, the result last, after `LayOut`. Several callers may be in it
  /// at once.
  virtual void Run(const std::vector<void*>& data) const = 0;
};

/// Whether one of our kernels computes what a description calls `primitive`.
bool IsOwn(const std::string& primitive);

/// Whether it also takes operands that are not float32.
bool TakesIntegers(const std::string& primitive);

/// Throws std::invalid_argument if shapes do not fit, or none of our kernels computes it.
std::unique_ptr<OwnKernel> MakeOwn(const Description& description, int threads);

// Each is in the file of its name, with its operands. All throw std::invalid_argument if shapes do
// not fit.
std::unique_ptr<OwnKernel> MakeAttention(const Description& description, int threads);
std::unique_ptr<OwnKernel> MakeConcatenation(const Description& description, int threads);
std::unique_ptr<OwnKernel> MakeIntegerConvolution(const Description& description, int threads);
std::unique_ptr<OwnKernel> MakeMaxPool(const Description& description, int threads);
std::unique_ptr<OwnKernel> MakeMoments(const Description& description, int threads);
std::unique_ptr<OwnKernel> MakeSoftmax(const Description& description, int threads);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_OWN_KERNEL_H_
