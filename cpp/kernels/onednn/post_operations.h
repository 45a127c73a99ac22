// Operations on a result before it is stored.
#ifndef TVM_SCHED_KERNELS_ONEDNN_POST_OPERATIONS_H_
#define TVM_SCHED_KERNELS_ONEDNN_POST_OPERATIONS_H_

#include <vector>

#include "kernels/onednn/kernel.h"

namespace tvm_sched::onednn {

dnnl::post_ops PostOperations(const Description& description);

/// Those of the arguments that post-operations read.
std::vector<Prepared::Binding> PostBindings(const Description& description);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_POST_OPERATIONS_H_
