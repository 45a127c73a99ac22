#include "runtime/cuda/completion.h"

namespace tvm_sched::runtime::cuda {

void Completion::Ended(void* self) {
  auto* completion = static_cast<Completion*>(self);
  std::lock_guard lock(completion->mutex_);
  // Notified under the lock: the sleeper may be the last to use this object.
  if (--completion->pending_ == 0) completion->ended_.notify_one();
}

void Completion::Sleep(const std::vector<Stream>& streams, Nanoseconds limit) {
  std::unique_lock lock(mutex_);
  if (pending_ == 0) {
    for (Stream stream : streams) {
      ++pending_;
      lock.unlock();  // the driver may call the function at once
      const Result result = Driver().LaunchHostFunction(stream, Ended, this);
      lock.lock();
      if (result == kSuccess) continue;
      --pending_;
      Check(result, "a stream takes no host function");
    }
  }
  ended_.wait_for(lock, limit, [&] { return pending_ == 0; });
}

}  // namespace tvm_sched::runtime::cuda
