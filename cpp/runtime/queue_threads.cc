#include "runtime/queue_threads.h"

#include <unistd.h>

#include <chrono>
#include <exception>

namespace tvm_sched::runtime {

QueueThreads::QueueThreads(int count) : owner_(getpid()) {
  threads_.reserve(count);
  try {
    for (int thread = 0; thread < count; ++thread)
      threads_.emplace_back([this, thread] { Loop(thread); });
  } catch (...) {
    // The system refused a thread: those that started must go before the members do.
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      generation_.fetch_add(1);
    }
    generation_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

QueueThreads::~QueueThreads() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool QueueThreads::Alive() const { return owner_ == getpid(); }

void QueueThreads::Loop(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    generation_.wait(seen, std::memory_order_acquire);
    {
      std::lock_guard lock(mutex_);
      seen = generation_.load(std::memory_order_acquire);
      if (closing_) return;
      if (!open_ || thread >= wanted_) continue;
      ++running_;
    }
    (*job_)(thread);
    std::lock_guard lock(mutex_);
    open_ = false;
    if (--running_ == 0) finished_.notify_one();
  }
}

void QueueThreads::Begin(int count, const Job& job) {
  {
    std::lock_guard lock(mutex_);
    wanted_ = count;
    job_ = &job;
    open_ = count > 0;
    generation_.fetch_add(1, std::memory_order_release);
  }
  generation_.notify_all();
}

void QueueThreads::Finish() {
  std::unique_lock lock(mutex_);
  open_ = false;
  finished_.wait(lock, [this] { return running_ == 0; });
}

void QueueThreads::Await(const std::function<void()>& poll, const std::function<void()>& give_up) {
  constexpr std::chrono::milliseconds kPollEvery{20};
  std::exception_ptr interrupt;
  std::unique_lock lock(mutex_);
  while (open_ || running_ > 0) {
    if (interrupt || !poll) {
      finished_.wait(lock);
    } else if (finished_.wait_for(lock, kPollEvery) == std::cv_status::timeout) {
      lock.unlock();
      try {
        poll();
      } catch (...) {
        interrupt = std::current_exception();
        give_up();
      }
      lock.lock();
    }
  }
  if (interrupt) std::rethrow_exception(interrupt);
}

}  // namespace tvm_sched::runtime
