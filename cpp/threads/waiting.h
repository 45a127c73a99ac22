// How TBB's threads wait: with pauses first, and only after that by giving up their core.
#ifndef TVM_SCHED_THREADS_WAITING_H_
#define TVM_SCHED_THREADS_WAITING_H_

namespace tvm_sched::threads {

/// Let TBB's threads pause for up to a millisecond before they yield their core; from then on.
///
/// TBB calls `sched_yield` after some microseconds without work. If another process, of whatever
/// priority, wants the core, Linux then lets it run for up to some milliseconds, and the kernel
/// that the thread takes part in is late by that. So libtbb's entry for `sched_yield` in the table
/// that the dynamic linker filled is replaced by a function that pauses. Returns false where libtbb
/// does not call `sched_yield` through such a table; its threads then yield as they did.
__attribute__((visibility("default"))) bool PauseBeforeYielding();

}  // namespace tvm_sched::threads

#endif  // TVM_SCHED_THREADS_WAITING_H_
