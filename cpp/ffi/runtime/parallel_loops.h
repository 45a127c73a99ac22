// Parallel loops of kernels that TVM generated: on the threads that all kernels share.
//
// Generated code calls TVMBackendParallelLaunch through a pointer in its library, the context
// symbol
// "__TVMBackendParallelLaunch", which is filled when the library is loaded. TVM's own function has
// a pool of its own, whose threads spin and know nothing of a device's share of the cores.
#ifndef TVM_SCHED_FFI_RUNTIME_PARALLEL_LOOPS_H_
#define TVM_SCHED_FFI_RUNTIME_PARALLEL_LOOPS_H_

namespace tvm_sched::runtime {

/// Let generated code that is loaded from now on call our function. In a kernel that an executor of
/// ours runs it uses the threads of the kernel (KernelThreads); other callers get what they had
/// before, TVM's pool. Called anew before each load: the symbol's last definition counts, and TVM's
/// runtime may have been loaded meanwhile.
void TakeParallelLoops();

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_PARALLEL_LOOPS_H_
