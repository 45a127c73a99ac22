// The CUDA driver, opened at run time, and what its status codes mean.
#ifndef TVM_SCHED_RUNTIME_CUDA_DRIVER_H_
#define TVM_SCHED_RUNTIME_CUDA_DRIVER_H_

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/cuda/driver_api.h"

namespace tvm_sched::runtime::cuda {

/// The driver or a device refused something.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// There is no driver, or it finds no device. `what` says what to do about it, too.
class CudaMissingError : public CudaError {
 public:
  explicit CudaMissingError(std::string reason);
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// A device has too little memory left.
class CudaMemoryError : public CudaError {
 public:
  using CudaError::CudaError;
};

/// The driver: opened and initialised at the first call, then the same for the whole process. The
/// environment variable TVM_SCHED_CUDA_DRIVER names another file than libcuda.so.1.
///
/// Throws CudaError where there is no driver or no device, and in a child process that was forked
/// after the first call, since CUDA does not survive a fork.
const DriverApi& Driver();

/// Tell, before the first call of Driver, how many streams there will be on one GPU, so that none
/// has to wait for another that has nothing to do with it.
void WantConnections(int streams);

/// Throw CudaError unless `result` is success; `what` says what was tried.
void Check(Result result, const std::string& what);

/// Gives the calling thread the context back that it had: other libraries in the process, such as
/// PyTorch, go by it.
class ContextGuard {
 public:
  ContextGuard();
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  Context former_ = nullptr;
};

/// Bytes that are read, or written.
struct Access {
  const void* data;
  unsigned long long size;
  int written;
};

/// Whether the driver checks the order of accesses, as the one of the tests does: it has the
/// functions tvm_sched_kernel_accesses and tvm_sched_host_accesses. NVIDIA's has not.
bool ChecksOrder();
/// Tell such a driver what the kernels touch that this thread launches from now on, and what the
/// host touches now. Others are told nothing.
void NoteKernelAccesses(const std::vector<Access>& accesses);
void NoteHostAccesses(const std::vector<Access>& accesses);

/// "CUDA_ERROR_INVALID_VALUE (invalid argument)"
std::string Describe(Result result);

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_DRIVER_H_
