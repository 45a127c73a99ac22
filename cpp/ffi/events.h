// Events of a schedule as rows of kind, item, source, device.
#ifndef TVM_SCHED_FFI_EVENTS_H_
#define TVM_SCHED_FFI_EVENTS_H_

#include <tvm/ffi/tvm_ffi.h>

#include "search/partial_schedule.h"

namespace tvm_sched {

/*! \brief The index, which must be at least `least` and below `limit`. */
int32_t IndexBelow(const char* what, int64_t index, int64_t least, size_t limit);

/*! \brief The event of a row; IndexError where it names what the problem lacks. */
search::Event EventOf(const search::Instance& instance, int64_t kind, int64_t item, int64_t source,
                      int64_t device);

/*! \brief The events of a table of rows. */
search::Sequence SequenceOf(const search::Instance& instance, const tvm::ffi::TensorView& rows);

/*! \brief A row for each event. */
tvm::ffi::Tensor TableOf(const search::Sequence& sequence);

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_EVENTS_H_
