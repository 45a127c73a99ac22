// What belongs to a calling thread: how many threads oneDNN may use in it, and its scratchpad.
#ifndef TVM_SCHED_KERNELS_ONEDNN_THREADS_H_
#define TVM_SCHED_KERNELS_ONEDNN_THREADS_H_

#include <cstddef>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// Let the calling thread's kernels use a share of the cores (runtime/cores.h), at least one.
void UseThreads(const Share& cores);

/// For the time of its life, the calling thread, which is not ours, uses a share of the cores.
class BorrowedThread {
 public:
  explicit BorrowedThread(const Share& cores);
  ~BorrowedThread();
  BorrowedThread(const BorrowedThread&) = delete;
  BorrowedThread& operator=(const BorrowedThread&) = delete;

 private:
  int former_;
};

/// Memory of the calling thread, at least `size` bytes, aligned to 64; the next call may move it.
void* Scratchpad(std::size_t size);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_THREADS_H_
