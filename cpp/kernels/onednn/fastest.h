// Which of oneDNN's implementations of a kernel is fastest on this machine, found by trying them.
#ifndef TVM_SCHED_KERNELS_ONEDNN_FASTEST_H_
#define TVM_SCHED_KERNELS_ONEDNN_FASTEST_H_

#include <string>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// oneDNN's name of the implementation that is fastest on a share of this many cores; empty where
/// that is the one it would take, or is not faster than that by more than noise.
std::string FastestImplementation(const Description& description, int cores);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_FASTEST_H_
