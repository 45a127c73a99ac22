// Arrays of 64-bit integers that travel between Python and C++.
#ifndef TVM_SCHED_FFI_ARRAYS_H_
#define TVM_SCHED_FFI_ARRAYS_H_

#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>
#include <span>

#include "simulate/schedule.h"

namespace tvm_sched {

/*! \brief The elements of a contiguous int64 tensor on the host. */
std::span<int64_t> Elements(const char* name, const tvm::ffi::TensorView& tensor);

/*! \brief The same, of which there must be `size`. */
std::span<int64_t> Elements(const char* name, const tvm::ffi::TensorView& tensor, size_t size);

/*! \brief A new rows x columns int64 tensor. */
tvm::ffi::Tensor NewTable(int64_t rows, int64_t columns);

/*! \brief Rows of operator, device, direct, stream, stage; rows of kind, item, source, device,
 * evict. */
simulate::Schedule ScheduleOf(const tvm::ffi::TensorView& placements,
                              const tvm::ffi::TensorView& transfers);

/*! \brief The inverse of ScheduleOf, row by row: tables of placements x 5 and transfers x 5. */
tvm::ffi::Array<tvm::ffi::Tensor> TablesOf(const simulate::Schedule& schedule);

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_ARRAYS_H_
