// What belongs to a calling thread: how many threads oneDNN may use in it, and its scratchpad.
#ifndef TVM_SCHED_KERNELS_ONEDNN_THREADS_H_
#define TVM_SCHED_KERNELS_ONEDNN_THREADS_H_

#include <cstddef>

namespace tvm_sched::onednn {

/// Let the calling thread's kernels use a device's share of the cores: cores / devices, at least 1.
/// TVM_SCHED_NUM_THREADS stands for the number of cores where it is set.
void UseThreads(int devices);

/// Memory of the calling thread, at least `size` bytes, aligned to 64; the next call may move it.
void* Scratchpad(std::size_t size);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_THREADS_H_
