// Arguments of the functions in this folder: tensors on one GPU, and its current stream.
#ifndef TVM_SCHED_KERNELS_CUDA_CALL_H_
#define TVM_SCHED_KERNELS_CUDA_CALL_H_

#include <tvm/ffi/function.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/driver.h"

namespace tvm_sched::cuda_kernels {

struct CallOnGpu {
  runtime::cuda::Context context = nullptr;
  runtime::cuda::Stream stream = nullptr;
  int gpu = 0;
  std::vector<void*> data;  // of each tensor

  /// Throws ffi::Error unless `args` are `count` tensors on one GPU; `name` is the function's.
  CallOnGpu(const std::string& name, int count, const tvm::ffi::PackedArgs& args);
  ~CallOnGpu();
  CallOnGpu(const CallOnGpu&) = delete;
  CallOnGpu& operator=(const CallOnGpu&) = delete;

 private:
  const CallOnGpu* outer_;
};

/// Most bytes that a kernel of a library may ask for on the stream of the thread's CallOnGpu.
std::size_t LargestWorkspace();

/// The GPU of the thread's CallOnGpu by its number in this process, 0 outside of a call.
int CurrentGpu();

/// Memory that is written anew by each call on the stream of the thread's CallOnGpu. All kernels of
/// a stream share it, since they follow each other. It is as large as the plan has counted; where
/// that is too little, or nothing was counted, it grows, and what was handed out stays until the
/// last reference goes.
std::shared_ptr<std::byte> AllocateWorkspace(std::size_t size, const std::string& name);

}  // namespace tvm_sched::cuda_kernels

#endif  // TVM_SCHED_KERNELS_CUDA_CALL_H_
