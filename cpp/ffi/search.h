// Binds the search algorithms on one problem.
#ifndef TVM_SCHED_FFI_SEARCH_H_
#define TVM_SCHED_FFI_SEARCH_H_

#include <tvm/ffi/tvm_ffi.h>

#include <memory>

#include "simulate/problem.h"

namespace tvm_sched {

/*!
 * \brief The functions of `SearchFunctions` in python/tvm_sched/schedule/_compiled.py, in its
 * order.
 *
 * Each returns tables of placements and transfers (`TablesOf`), or an empty array where it finds no
 * schedule. `progress` is called with parts done and parts in all; to annealing it
 * returns the part of the time limit that is over.
 */
tvm::ffi::Array<tvm::ffi::Function> SearchFunctions(
    std::shared_ptr<const simulate::Problem> problem);

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_SEARCH_H_
