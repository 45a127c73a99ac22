// Sequences of events as tables, with a row for each event.
#ifndef TVM_SCHED_FFI_EVENTS_H_
#define TVM_SCHED_FFI_EVENTS_H_

#include <tvm/ffi/tvm_ffi.h>

#include "arrays.h"
#include "search/partial_schedule.h"

namespace tvm_sched {

/*! \brief The index, which must be at least `least` and below `limit`. */
int32_t IndexBelow(const char* what, int64_t index, int64_t least, size_t limit);

/*! \brief An operator that runs; IndexError where the problem has no such operator or device. */
search::Event RunOf(const search::Instance& instance, int64_t op, int64_t device, bool direct);

/*! \brief A tensor that moves; IndexError where the problem has no such tensor or device. */
search::Event MoveOf(const search::Instance& instance, int64_t tensor, int64_t source,
                     int64_t device);

/*! \brief The events of a table with columns kind (`search::Event::Kind`), item, source, device. */
search::Sequence SequenceOf(const search::Instance& instance, const Integers& table);

/*! \brief The table of a sequence. */
tvm::ffi::Tensor TableOf(const search::Sequence& sequence);

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_EVENTS_H_
