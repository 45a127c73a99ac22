// The threads that all kernels of this process share: TBB's. A library of its own, so that the
// executor needs no TBB where a plan has no parallel kernels, and kernel libraries use the same.
#ifndef TVM_SCHED_THREADS_POOL_H_
#define TVM_SCHED_THREADS_POOL_H_

#include <memory>

namespace tvm_sched::threads {

/// Reference to a callable that lives at least as long as the call it is given to.
template <typename... Arguments>
class Callback {
 public:
  template <typename Function>
  Callback(const Function& function)  // NOLINT: converts, as std::function does
      : context_(std::addressof(function)), call_([](const void* context, Arguments... arguments) {
          (*static_cast<const Function*>(context))(arguments...);
        }) {}

  void operator()(Arguments... arguments) const { call_(context_, arguments...); }

 private:
  const void* context_;
  void (*call_)(const void*, Arguments...);
};

/// Call `work` so that the parallel loops in it, oneDNN's too, are done by at most `threads`
/// threads, the calling one among them. What `work` throws goes on to the caller.
///
/// Threads of several callers do not wait for each other: there are as many workers in the process
/// as it has cores, less one, and what no worker has begun is done by the caller. A worker that has
/// nothing to do looks for work for a millisecond without giving up its core, and then sleeps. In a
/// process that was forked after workers began, the calling thread does everything: a child has no
/// copy of them.
__attribute__((visibility("default"))) void Enter(int threads, Callback<> work);

/// Call body(0) ... body(count - 1), in any order, on at most `threads` threads. The first
/// exception goes on to the caller; calls that have not begun by then are left out.
__attribute__((visibility("default"))) void Loop(int threads, int count, Callback<int> body);

/// The same on threads that end with the call, for work when something is loaded: the pool's, once
/// begun, would be missing in processes that are forked after that.
__attribute__((visibility("default"))) void LoopOnNewThreads(int threads, int count,
                                                             Callback<int> body);

}  // namespace tvm_sched::threads

#endif  // TVM_SCHED_THREADS_POOL_H_
