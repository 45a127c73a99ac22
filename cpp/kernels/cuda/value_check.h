// Whether an algorithm of cuBLASLt or a plan of cuDNN computes a kernel right: some values of its
// result are compared with plain sums before it is used, or after a capture in which it was first
// used, unless memory is short.
#ifndef TVM_SCHED_KERNELS_CUDA_VALUE_CHECK_H_
#define TVM_SCHED_KERNELS_CUDA_VALUE_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/library_kernel.h"

namespace tvm_sched::cuda_kernels {

/// A kernel by definition, each element of the result by itself.
struct PlainKernel {
  struct Tensor {
    std::string dtype;
    std::int64_t elements;   // from the address that a call is given
    double factor;           // of the small numbers that it is filled with
    std::int64_t first = 0;  // of these
    double Number(std::int64_t element) const;
  };
  struct Value {
    std::int64_t element;  // of the result
    double value;
  };
  std::vector<Tensor> tensors;        // in the order of a call, so the result is the last
  std::vector<std::int64_t> extents;  // of the result
  std::int64_t terms;                 // of the sum that an element is
  std::function<Value(const std::vector<std::int64_t>&)> at;

  /// What is compared, by element: all of a small result.
  std::vector<Value> Sample() const;
};

PlainKernel PlainKernelOf(const MatmulDescription& description);
PlainKernel PlainKernelOf(const ConvolutionDescription& description);
PlainKernel PlainKernelOf(const AttentionDescription& description);

/// Whether the values of a candidate are right on the GPU of the thread's CallOnGpu; `key`
/// describes the kernel. The candidate runs once on random numbers, on a stream that is not
/// captured, and part of its result, or all of a small one, is compared. What was found is
/// remembered by GPU, versions of the libraries, candidate and kernel: in the process and, unless
/// TVM_SCHED_NO_CACHE is set, in the file `cuda_values.txt` of the cache. True if the candidate
/// refuses the kernel, or if memory for its tensors is not to be had; the latter is remembered only
/// in the process.
bool IsRight(Candidate& candidate, const std::string& key,
             const std::function<PlainKernel()>& plain, void* workspace,
             runtime::cuda::Stream stream);

/// A sentence for each candidate that was found wrong on a GPU of this machine.
std::vector<std::string> FoundWrong();

/// How many candidates this process ran to check them.
int CountChecks();

}  // namespace tvm_sched::cuda_kernels

#endif  // TVM_SCHED_KERNELS_CUDA_VALUE_CHECK_H_
