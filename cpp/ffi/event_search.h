// Binds the searches over sequences of events.
#ifndef TVM_SCHED_FFI_EVENT_SEARCH_H_
#define TVM_SCHED_FFI_EVENT_SEARCH_H_

#include <tvm/ffi/tvm_ffi.h>

#include "simulate/problem.h"

namespace tvm_sched {

/*! \brief The functions `construct` and `improve` of a problem; sequences are rows of kind, item,
 * source, device. */
tvm::ffi::Array<tvm::ffi::Function> BindSearch(const simulate::Problem& problem);

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_EVENT_SEARCH_H_
