// Kernels that nvcc compiled: a fat binary, and for each function how its kernels are launched.
#ifndef TVM_SCHED_KERNELS_CUDA_IMAGE_H_
#define TVM_SCHED_KERNELS_CUDA_IMAGE_H_

#include <tvm/ffi/function.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/library_kernel.h"
#include "runtime/cuda/handles.h"

namespace tvm_sched::cuda_kernels {

namespace driver = runtime::cuda;

/// Where a kernel's pointer comes from: a tensor of the call, or memory between two kernels.
struct PointerSource {
  bool workspace = false;
  int index = 0;
};

struct LaunchDescription {
  std::string symbol;
  std::array<unsigned, 3> grid{1, 1, 1}, block{1, 1, 1};
  unsigned shared_bytes = 0;  // that the launch asks for beside what the kernel declares
  std::vector<PointerSource> pointers{};
};

/// A function of the plan: one kernel or several in a row.
struct FunctionDescription {
  int tensors = 0;
  std::vector<std::size_t> workspaces;  // bytes of each
  std::vector<LaunchDescription> launches;
  std::optional<AttentionDescription> attention;      // which cuDNN may compute faster,
  std::optional<ConvolutionDescription> convolution;  // or this
};

/// Reads `{"version": 3, "functions": {name: {"tensors", "workspaces", "launches": [{"symbol",
/// "grid", "block", "shared_bytes", "pointers": [["tensor" or "workspace", index]]}],
/// "attention", "convolution"}}}`; the last two are optional (`ReadAttention`, `ReadConvolution`).
std::map<std::string, FunctionDescription> ReadFunctions(const std::string& json);

/// The binary, loaded into each context that calls it.
class Image {
 public:
  explicit Image(std::string bytes) : bytes_(std::move(bytes)) {}

  /// A kernel in the calling thread's context. Throws ffi::Error where the binary has no code for
  /// that GPU.
  driver::Function Find(const std::string& symbol, unsigned shared_bytes);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  std::mutex mutex_;
  std::map<driver::Context, driver::ModuleHandle> modules_;
};

/// One function, callable from several devices at once: on the calling thread's stream.
class ImageFunction : public std::enable_shared_from_this<ImageFunction> {
 public:
  ImageFunction(std::string name, FunctionDescription description, std::shared_ptr<Image> image)
      : name_(std::move(name)), description_(std::move(description)), image_(std::move(image)) {}

  void Call(tvm::ffi::PackedArgs args);
  /// Whether the first call chooses between this binary's kernels and those of a library.
  bool Chooses() const { return description_.attention || description_.convolution; }
  /// Load what a call with these arguments needs, and launch nothing.
  void MakeReady(tvm::ffi::PackedArgs args);

 private:
  /// What a stream needs for its calls; made at the first.
  struct OnStream {
    std::vector<driver::Function> kernels;
    std::shared_ptr<std::byte> memory;  // of the workspaces
    std::vector<void*> workspaces;
    std::unique_ptr<FastestCandidate> fastest;  // null: the function's own launches
  };

  /// The function's own launches beside what a library has for it.
  class OwnLaunches;

  OnStream& Prepare(driver::Context context, driver::Stream stream);
  void Forget(const std::pair<driver::Context, driver::Stream>& key);
  void Launch(OnStream& here, const std::vector<void*>& data, driver::Stream stream) const;

  std::string name_;
  FunctionDescription description_;
  std::shared_ptr<Image> image_;
  std::mutex mutex_;
  std::map<std::pair<driver::Context, driver::Stream>, OnStream> streams_;
};

}  // namespace tvm_sched::cuda_kernels

#endif  // TVM_SCHED_KERNELS_CUDA_IMAGE_H_
