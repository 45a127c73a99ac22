// A function that cuBLASLt or cuDNN computes. What a library needs for it (descriptors, algorithm,
// workspace) is made once for each stream, at the first call.
#ifndef TVM_SCHED_KERNELS_CUDA_LIBRARY_KERNEL_H_
#define TVM_SCHED_KERNELS_CUDA_LIBRARY_KERNEL_H_

#include <tvm/ffi/function.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/call.h"
#include "runtime/json_cursor.h"

namespace tvm_sched::cuda_kernels {

enum class Activation { kNone, kRelu, kGelu };

/// How matrices lie in memory: rows `stride` elements apart, or columns where they are transposed;
/// a batch of them `batch_stride` apart, 0 for one matrix for all.
struct MatrixDescription {
  bool transposed = false;
  std::int64_t stride = 1, batch_stride = 0;
};

/// `batch` products of matrices m x k and k x n; the results are row-major, one after the other.
struct MatmulDescription {
  std::string dtype, result_dtype;
  bool tf32 = false;  // may float32 be rounded to 11 bits for tensor cores?
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
  MatrixDescription a, b;
  bool bias = false;  // of n elements of the result's type
  Activation activation = Activation::kNone;
};

/// A convolution; extents as batch, channels, height, width whatever the layout, the weights' as
/// output, input / groups, height, width.
struct ConvolutionDescription {
  std::string dtype;
  bool tf32 = false;
  bool channels_last = false;  // NHWC, and the weights as output, height, width, input / groups
  std::vector<int> input, weights, output;
  std::vector<int> padding, strides, dilation;
  int groups = 1;
  bool residual = false;  // a summand like the output, before the activation
  bool bias = false;
  Activation activation = Activation::kNone;
};

class Candidate;

/// A kernel made ready for one stream.
class Prepared {
 public:
  virtual ~Prepared() = default;
  /// `data`: the two inputs, the bias where there is one, the summand where there is one, the
  /// result.
  virtual void Run(const std::vector<void*>& data, runtime::cuda::Stream stream) = 0;
};

/// Reads `{"kind": "conv2d", ...}` with the fields above. Throws FormatError.
ConvolutionDescription ReadConvolution(const runtime::JsonCursor& item);
/// The same for equal problems.
std::string KeyOf(const ConvolutionDescription& description);
/// cuDNN's plans and algorithms, the best by its rules first.
std::vector<std::unique_ptr<Candidate>> ConvolutionCandidates(
    const ConvolutionDescription& description, runtime::cuda::Stream stream);

std::unique_ptr<Prepared> PrepareMatmul(const MatmulDescription& description,
                                        const std::string& name);
std::unique_ptr<Prepared> PrepareConvolution(const ConvolutionDescription& description,
                                             const std::string& name, runtime::cuda::Stream stream);

/// Plans of cuDNN's graph interface for a GPU of these properties, as text; needs no GPU.
std::vector<std::string> CompileConvolution(const ConvolutionDescription& description,
                                            const std::string& properties);

class LibraryKernel : public std::enable_shared_from_this<LibraryKernel> {
 public:
  /// Reads `{"kind": "matmul" or "conv2d", ...}` with the fields above. Throws FormatError.
  LibraryKernel(std::string name, const runtime::JsonCursor& description);

  void Call(tvm::ffi::PackedArgs args);
  /// Make ready what a call with these arguments needs, and launch nothing.
  void MakeReady(tvm::ffi::PackedArgs args);

 private:
  using Key = std::pair<runtime::cuda::Context, runtime::cuda::Stream>;

  /// What is kept for the stream of a call, made at the first.
  Prepared& For(const CallOnGpu& call);
  void Forget(const Key& key);

  std::string name_;
  int tensors_ = 3;
  std::function<std::unique_ptr<Prepared>(runtime::cuda::Stream)> prepare_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace tvm_sched::cuda_kernels

#endif  // TVM_SCHED_KERNELS_CUDA_LIBRARY_KERNEL_H_
