// Streams and events that are destroyed with their owners.
#ifndef TVM_SCHED_RUNTIME_CUDA_HANDLES_H_
#define TVM_SCHED_RUNTIME_CUDA_HANDLES_H_

#include <utility>

#include "runtime/cuda/driver.h"

namespace tvm_sched::runtime::cuda {

/// A handle with the driver's function that destroys it; errors there help nobody.
template <typename Value, Result (*DriverApi::*Destroy)(Value)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(Value value) : value_(value) {}
  ~Handle() { Reset(); }
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      Reset();
      value_ = std::exchange(other.value_, nullptr);
    }
    return *this;
  }

  Value get() const { return value_; }

 private:
  void Reset() {
    if (value_ == nullptr) return;
    try {
      (Driver().*Destroy)(value_);
    } catch (const CudaError&) {
      // A forked child: the handle is the parent's.
    }
    value_ = nullptr;
  }

  Value value_ = nullptr;
};

using StreamHandle = Handle<Stream, &DriverApi::StreamDestroy>;
using EventHandle = Handle<Event, &DriverApi::EventDestroy>;
using GraphHandle = Handle<Graph, &DriverApi::GraphDestroy>;
using GraphExecHandle = Handle<GraphExec, &DriverApi::GraphExecDestroy>;
using ModuleHandle = Handle<Module, &DriverApi::ModuleUnload>;

/// Made in the calling thread's context.
inline EventHandle MakeEvent(unsigned flags) {
  Event event = nullptr;
  Check(Driver().EventCreate(&event, flags), "an event cannot be made");
  return EventHandle(event);
}

inline StreamHandle MakeStream(int priority) {
  Stream stream = nullptr;
  Check(Driver().StreamCreate(&stream, kStreamNonBlocking, priority), "a stream cannot be made");
  return StreamHandle(stream);
}

/// Do something with a stream; if that throws, wait for the stream first, since memory that it uses
/// may go then.
template <typename Work>
void WithStream(const StreamHandle& stream, const Work& work) {
  try {
    work(stream.get());
  } catch (...) {
    Driver().StreamSynchronize(stream.get());
    throw;
  }
}

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_HANDLES_H_
