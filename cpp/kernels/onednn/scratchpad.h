// Memory that primitives of a calling thread share.
#ifndef TVM_SCHED_KERNELS_ONEDNN_SCRATCHPAD_H_
#define TVM_SCHED_KERNELS_ONEDNN_SCRATCHPAD_H_

#include <cstddef>

namespace tvm_sched::onednn {

/// Memory of the calling thread, at least `size` bytes, aligned to 64; the next call may move it.
void* Scratchpad(std::size_t size);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_SCRATCHPAD_H_
