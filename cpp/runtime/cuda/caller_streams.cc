#include "runtime/cuda/caller_streams.h"

#include <string>

namespace tvm_sched::runtime::cuda {

CallerStreams::Marks& CallerStreams::MarksOf(int gpu) {
  Marks& marks = marks_[gpu];
  if (marks.arrived.get() == nullptr) {
    marks = {MakeEvent(kEventDisableTiming), MakeEvent(kEventDisableTiming)};
  }
  return marks;
}

void CallerStreams::Issue(const Exchange& exchange, const std::vector<Transfer>& transfers) const {
  for (const Transfer& transfer : transfers) {
    if (transfer.size.count == 0) continue;
    Check(Driver().CopyAsync(reinterpret_cast<DevicePointer>(transfer.to),
                             reinterpret_cast<DevicePointer>(transfer.from),
                             static_cast<std::size_t>(transfer.size.count), exchange.stream),
          "a copy on the caller's stream was refused");
  }
}

std::vector<Event> CallerStreams::Arrive() {
  std::vector<Event> events;
  arrived_ = false;
  for (const Exchange& exchange : exchanges_) {
    devices_->EnterGpu(exchange.gpu);
    int capturing = kCaptureNone;
    Check(Driver().StreamIsCapturing(exchange.stream, &capturing), "the caller's stream is wrong");
    if (capturing != kCaptureNone) {
      throw CudaError("the current stream of GPU " + std::to_string(exchange.gpu) +
                      " is being captured, and a run waits for its end: call it outside of the "
                      "capture; configure(graph=True) captures runs");
    }
    Issue(exchange, exchange.arriving);
    const Event arrived = MarksOf(exchange.gpu).arrived.get();
    Check(Driver().EventRecord(arrived, exchange.stream), "an event was refused");
    events.push_back(arrived);
  }
  arrived_ = true;
  return events;
}

void CallerStreams::Leave(const std::vector<Event>& ends) {
  if (!arrived_) return;
  for (const Exchange& exchange : exchanges_) {
    if (exchange.leaving.empty()) continue;
    devices_->EnterGpu(exchange.gpu);
    for (Event end : ends) {
      Check(Driver().StreamWaitEvent(exchange.stream, end, 0), "a stream cannot wait");
    }
    Issue(exchange, exchange.leaving);
    Check(Driver().EventRecord(MarksOf(exchange.gpu).left.get(), exchange.stream),
          "an event was refused");
  }
}

bool CallerStreams::Finished() const {
  for (const Exchange& exchange : exchanges_) {
    if (exchange.leaving.empty()) continue;
    const Result result = Driver().EventQuery(marks_.at(exchange.gpu).left.get());
    if (result == kNotReady) return false;
    Check(result, "a copy failed on GPU " + std::to_string(exchange.gpu));
  }
  return true;
}

void CallerStreams::Drain() const {
  for (const Exchange& exchange : exchanges_) {
    devices_->EnterGpu(exchange.gpu);  // the default stream is the context's
    Driver().StreamSynchronize(exchange.stream);
  }
}

}  // namespace tvm_sched::runtime::cuda
