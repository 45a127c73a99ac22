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

  /// Let job(0) ... job(count - 1) begin, each on its own thread. A job returns when the whole work
  /// is done, by any thread, and must not throw. It has to exist until `Finish` or `Await`
  /// returns.
  void Begin(int count, const Job& job);
  /// The work is done: nobody begins any more, and those who have are awaited. So a thread that did
  /// not get a core in time, since other processes have them all, is not waited for.
  void Finish();
  /// Wait until one job returns, then `Finish`. While waiting, `poll` is called every few
  /// milliseconds; when it throws, `give_up` is called once, the threads are awaited, and the
  /// exception goes on to the caller.
  void Await(const std::function<void()>& poll, const std::function<void()>& give_up);

  /// Whether the threads exist in this process: a fork copies none of them into the child.
  bool Alive() const;

 private:
  void Loop(int thread);

  // A run leaves no thread behind that has begun its job, so one generation is at work at a time.
  std::atomic<std::uint32_t> generation_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
  // Guarded by mutex_:
  bool closing_ = false;
  bool open_ = false;  // threads may still begin the job
  const Job* job_ = nullptr;
  int wanted_ = 0;  // the first `wanted_` threads work
  int running_ = 0;
  pid_t owner_;
  std::vector<std::thread> threads_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_QUEUE_THREADS_H_
