// The functions of CUDA's driver for streams, events and graphs.
#include "state.h"

using namespace fake_cuda;

namespace {

/// Under the lock; null for one that was destroyed.
std::shared_ptr<EventRecord> Known(EventRecord* event) {
  auto& events = TheState().events;
  const auto found = events.find(event);
  return found == events.end() ? nullptr : found->second;
}

}  // namespace

EXPORT int cuStreamCreateWithPriority(StreamRecord** stream, unsigned, int priority) {
  ENTER(cuStreamCreateWithPriority);
  std::lock_guard lock(TheState().mutex);
  if (current == nullptr || priority > 0 || priority < -5) return kInvalidValue;
  *stream = MakeStream(current);
  return kOk;
}
// What the stream was given is still done, and nobody waits for that.
EXPORT int cuStreamDestroy_v2(StreamRecord* stream) {
  ENTER_ALWAYS(cuStreamDestroy_v2);
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  if (state.streams.erase(stream) == 0) return kInvalidHandle;
  const auto own = static_cast<std::size_t>(stream->timeline);
  const std::uint64_t last = own < stream->clock.size() ? stream->clock[own] : 0;
  const std::uint64_t known = own < state.host.size() ? state.host[own] : 0;
  if (known >= last) state.free_timelines.push_back(stream->timeline);
  stream->closing = true;
  state.changed.notify_all();
  return kOk;
}
EXPORT int cuStreamQuery(StreamRecord* stream) {
  ENTER(cuStreamQuery);
  std::lock_guard lock(TheState().mutex);
  stream = Resolve(stream);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture) return kCaptureUnsupported;
  if (!stream->queue.empty() || stream->busy) return kNotReady;
  Join(TheState().host, stream->clock);
  return kOk;
}
EXPORT int cuStreamSynchronize(StreamRecord* stream) {
  ENTER_ALWAYS(cuStreamSynchronize);
  std::unique_lock lock(TheState().mutex);
  stream = Resolve(stream);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture) return kCaptureUnsupported;
  const VectorClock until = stream->clock;
  TheState().changed.wait(lock, [&] { return stream->queue.empty() && !stream->busy; });
  Join(TheState().host, until);
  return TheState().fault;
}
EXPORT int cuStreamWaitEvent(StreamRecord* stream, EventRecord* handle, unsigned) {
  ENTER(cuStreamWaitEvent);
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  stream = Resolve(stream);
  const std::shared_ptr<EventRecord> event = Known(handle);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  if (event->capture && !stream->capture) {
    stream->capture = event->capture;
    stream->capture->streams.insert(stream);
    stream->frontier.clear();
  }
  if (stream->capture) {
    if (event->capture != stream->capture) return kIsolation;
    stream->frontier.insert(event->frontier.begin(), event->frontier.end());
    return kOk;
  }
  if (event->recorded == 0) return kInvalidValue;  // CUDA would wait for nothing, silently
  Join(stream->clock, event->clock);
  Submit(stream, [&state, event, wanted = event->recorded] {
    std::unique_lock inner(state.mutex);
    state.changed.wait(inner, [&] { return event->done >= wanted; });
  });
  return kOk;
}
EXPORT int cuStreamIsCapturing(StreamRecord* stream, int* status) {
  ENTER(cuStreamIsCapturing);
  std::lock_guard lock(TheState().mutex);
  stream = Resolve(stream);
  if (stream == nullptr) return kInvalidHandle;
  *status = stream->capture ? 1 : 0;
  return kOk;
}
EXPORT int cuLaunchHostFunc(StreamRecord* stream, void (*function)(void*), void* data) {
  ENTER(cuLaunchHostFunc);
  std::lock_guard lock(TheState().mutex);
  stream = Resolve(stream);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture) return kCaptureUnsupported;
  Submit(stream, [=] { function(data); });
  return kOk;
}
EXPORT int cuStreamBeginCapture_v2(StreamRecord* stream, int) {
  ENTER(cuStreamBeginCapture_v2);
  if (stream == nullptr) return kCaptureUnsupported;  // as CUDA says of the legacy default stream
  std::lock_guard lock(TheState().mutex);
  if (Resolve(stream) == nullptr) return kInvalidHandle;
  if (stream->capture) return kCaptureUnsupported;
  stream->capture = std::make_shared<GraphRecord>();
  stream->capture->streams.insert(stream);
  stream->frontier.clear();
  return kOk;
}
EXPORT int cuStreamEndCapture(StreamRecord* stream, std::shared_ptr<GraphRecord>** graph) {
  ENTER(cuStreamEndCapture);
  std::lock_guard lock(TheState().mutex);
  if (Resolve(stream) == nullptr || !stream->capture) return kInvalidValue;
  const std::shared_ptr<GraphRecord> captured = stream->capture;
  std::set<int> joined = stream->frontier;
  for (bool grown = true; grown;) {
    const std::size_t before = joined.size();
    const std::set<int> now = joined;
    for (int node : now) {
      joined.insert(captured->nodes[node].after.begin(), captured->nodes[node].after.end());
    }
    grown = joined.size() > before;
  }
  for (void* member : captured->streams) {
    auto* record = static_cast<StreamRecord*>(member);
    if (TheState().streams.count(record) == 0) continue;
    record->capture.reset();
    record->frontier.clear();
  }
  if (joined.size() < captured->nodes.size()) return kUnjoined;
  *graph = new std::shared_ptr<GraphRecord>(captured);
  ++TheState().graphs;
  return kOk;
}
EXPORT int cuEventCreate(EventRecord** event, unsigned) {
  ENTER(cuEventCreate);
  if (current == nullptr) return kInvalidContext;
  std::lock_guard lock(TheState().mutex);
  const auto made = std::make_shared<EventRecord>(EventRecord{current});
  *event = made.get();
  TheState().events[made.get()] = made;
  return kOk;
}
// A stream that waits for it still does.
EXPORT int cuEventDestroy_v2(EventRecord* event) {
  ENTER_ALWAYS(cuEventDestroy_v2);
  std::lock_guard lock(TheState().mutex);
  return TheState().events.erase(event) == 0 ? kInvalidHandle : kOk;
}
EXPORT int cuEventRecord(EventRecord* handle, StreamRecord* stream) {
  ENTER(cuEventRecord);
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  stream = Resolve(stream);
  const std::shared_ptr<EventRecord> event = Known(handle);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  if (event->context != stream->context) return kInvalidValue;
  event->capture = stream->capture;
  event->frontier = stream->frontier;
  if (stream->capture) return kOk;
  Submit(stream, [&state, event, stream, number = ++event->recorded] {
    std::lock_guard inner(state.mutex);
    event->done = number;
    event->at = std::chrono::steady_clock::now() + stream->late;
    state.changed.notify_all();
  });
  event->clock = stream->clock;
  return kOk;
}
EXPORT int cuEventQuery(EventRecord* handle) {
  ENTER(cuEventQuery);
  std::lock_guard lock(TheState().mutex);
  const std::shared_ptr<EventRecord> event = Known(handle);
  if (event == nullptr) return kInvalidHandle;
  if (event->capture) return kCaptureUnsupported;
  if (event->done < event->recorded) return kNotReady;
  Join(TheState().host, event->clock);
  return kOk;
}
EXPORT int cuEventElapsedTime(float* milliseconds, EventRecord* from, EventRecord* to) {
  ENTER(cuEventElapsedTime);
  std::lock_guard lock(TheState().mutex);
  if (from->context != to->context || from->recorded == 0 || to->recorded == 0) {
    return kInvalidValue;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return kOk;
}
EXPORT int cuGraphInstantiateWithFlags(std::shared_ptr<GraphRecord>** exec,
                                       std::shared_ptr<GraphRecord>* graph, unsigned long long) {
  ENTER(cuGraphInstantiateWithFlags);
  std::lock_guard lock(TheState().mutex);
  CheckGraph(**graph);
  *exec = new std::shared_ptr<GraphRecord>(*graph);
  ++TheState().executables;
  return kOk;
}
EXPORT int cuGraphLaunch(std::shared_ptr<GraphRecord>* exec, StreamRecord* stream) {
  ENTER(cuGraphLaunch);
  std::lock_guard lock(TheState().mutex);
  stream = Resolve(stream);
  if (stream == nullptr) return kInvalidHandle;
  Submit(stream, [graph = *exec] { RunGraph(*graph); }, 0, {"a graph", (*exec)->ranges});
  return kOk;
}
EXPORT int cuGraphExecDestroy(std::shared_ptr<GraphRecord>* exec) {
  ENTER_ALWAYS(cuGraphExecDestroy);
  std::lock_guard lock(TheState().mutex);
  delete exec;
  --TheState().executables;
  return kOk;
}
EXPORT int cuGraphDestroy(std::shared_ptr<GraphRecord>* graph) {
  ENTER_ALWAYS(cuGraphDestroy);
  std::lock_guard lock(TheState().mutex);
  delete graph;
  --TheState().graphs;
  return kOk;
}
