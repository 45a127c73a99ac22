// The product of one row with a matrix, which takes as long as the matrix takes to be read.
#ifndef TVM_SCHED_KERNELS_ONEDNN_MATRIX_VECTOR_H_
#define TVM_SCHED_KERNELS_ONEDNN_MATRIX_VECTOR_H_

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// A `matmul` of one row with weights that are a parameter. oneDNN's kernels are made for many
/// rows: with one they read the weights at about two thirds of the memory's bandwidth.
class MatrixVector {
 public:
  /// Whether a description is such a product, and all that follows it is known here.
  static bool Computes(const Description& description);

  MatrixVector(const Description& description, int threads);

  /// How the weights are read: the terms of each sum next to each other.
  dnnl::memory::desc weights() const;

  /// The addresses of all operands, the result last, the weights as `weights` says. Several
  /// callers may be in it at once.
  void Run(const std::vector<void*>& data) const;

 private:
  /// Results `first` to `end`.
  void Columns(const std::vector<void*>& data, std::int64_t first, std::int64_t end) const;

  Description description_;
  int threads_, tasks_;
  bool bfloat16_;
  std::int64_t terms_, columns_;
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_MATRIX_VECTOR_H_
