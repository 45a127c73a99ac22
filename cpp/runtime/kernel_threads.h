// How many threads the kernel that runs on a thread may use.
#ifndef TVM_SCHED_RUNTIME_KERNEL_THREADS_H_
#define TVM_SCHED_RUNTIME_KERNEL_THREADS_H_

namespace tvm_sched::runtime {

/// For the time of its life, kernels that this thread calls may use this many threads.
class KernelThreads {
 public:
  explicit KernelThreads(int threads) : former_(current_) { current_ = threads; }
  ~KernelThreads() { current_ = former_; }
  KernelThreads(const KernelThreads&) = delete;
  KernelThreads& operator=(const KernelThreads&) = delete;

  /// 0 on a thread that runs none of our kernels.
  static int Current() { return current_; }

 private:
  static inline thread_local int current_ = 0;
  int former_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_KERNEL_THREADS_H_
