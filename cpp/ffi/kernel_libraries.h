// Our shared libraries that are opened on first use.
#ifndef TVM_SCHED_FFI_KERNEL_LIBRARIES_H_
#define TVM_SCHED_FFI_KERNEL_LIBRARIES_H_

#include "threads/pool.h"

namespace tvm_sched::runtime {

using PoolLoop = decltype(&threads::Loop);

/// threads::Loop of libtvm_sched_threads, or null where that cannot be opened (no TBB).
PoolLoop FindPoolLoop();

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_KERNEL_LIBRARIES_H_
