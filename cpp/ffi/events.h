// Sequences of events as tables, with a row for each event.
#ifndef TVM_SCHED_FFI_EVENTS_H_
#define TVM_SCHED_FFI_EVENTS_H_

#include <tvm/ffi/tvm_ffi.h>

#include <cstddef>
#include <cstdint>

#include "ffi/arrays.h"
#include "search/partial_schedule.h"

namespace tvm_sched {

/// The index, which must be at least `least` and below `limit`.
std::int32_t IndexBelow(const char* what, std::int64_t index, std::int64_t least,
                        std::size_t limit);

/// An operator that runs; IndexError where the problem has no such operator or device.
search::Event RunOf(const search::Instance& instance, std::int64_t op, std::int64_t device,
                    bool direct);

/// A tensor that moves; IndexError where the problem has no such tensor or device.
search::Event MoveOf(const search::Instance& instance, std::int64_t tensor, std::int64_t source,
                     std::int64_t device);

/// The events of a table with columns kind (`search::Event::Kind`), item, source, device.
search::Sequence SequenceOf(const search::Instance& instance, const Integers& table);

/// The table of a sequence.
tvm::ffi::Tensor TableOf(const search::Sequence& sequence);

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_EVENTS_H_
