// The threads that work through queues, kept from run to run.
#ifndef TVM_SCHED_RUNTIME_QUEUE_THREADS_H_
#define TVM_SCHED_RUNTIME_QUEUE_THREADS_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tvm_sched::runtime {

class QueueThreads {
 public:
  using Job = std::function<void(int thread)>;

  explicit QueueThreads(int count);
  /// Joins the threads; nothing may be running.
  ~QueueThreads();
  QueueThreads(const QueueThreads&) = delete;
  QueueThreads& operator=(const QueueThreads&) = delete;

  int count() const { return static_cast<int>(threads_.size()); }

  /// Run job(0) ... job(count - 1), each on its own thread, and wait for all. The job must not
  /// throw. While waiting, `poll` is called every few milliseconds; when it throws, `give_up` is
  /// called once, the threads are awaited, and the exception goes on to the caller.
  void Run(const Job& job, const std::function<void()>& poll, const std::function<void()>& give_up);

  /// Whether the threads exist in this process: a fork copies none of them into the child.
  bool Alive() const;

 private:
  void Loop(int thread);
  void WaitForAll(const std::function<void()>& poll, const std::function<void()>& give_up);

  // Even a run that is given up leaves no thread behind, so one generation is at work at a time.
  std::atomic<std::uint32_t> generation_{0};
  bool closing_ = false;  // written before a new generation, read after it
  const Job* job_ = nullptr;
  std::mutex mutex_;
  std::condition_variable finished_;
  int running_ = 0;  // guarded by mutex_
  pid_t owner_;
  std::vector<std::thread> threads_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_QUEUE_THREADS_H_
