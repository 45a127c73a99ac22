// The functions of CUDA's driver for streams, events and graphs.
#include "state.h"

using namespace fake_cuda;

EXPORT int cuStreamCreateWithPriority(StreamRecord** stream, unsigned, int priority) {
  ENTER(cuStreamCreateWithPriority);
  if (current == nullptr || priority > 0 || priority < -5) return kInvalidValue;
  *stream = new StreamRecord{current};
  (*stream)->thread = std::thread(Loop, *stream);
  return kOk;
}
EXPORT int cuStreamDestroy_v2(StreamRecord* stream) {
  {
    std::lock_guard lock(TheState().mutex);
    stream->closing = true;
    TheState().changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return kOk;
}
EXPORT int cuStreamQuery(StreamRecord* stream) {
  ENTER(cuStreamQuery);
  std::lock_guard lock(TheState().mutex);
  stream = Resolve(stream);
  if (stream->capture) return kCaptureUnsupported;
  return stream->queue.empty() && !stream->busy ? kOk : kNotReady;
}
EXPORT int cuStreamSynchronize(StreamRecord* stream) {
  std::unique_lock lock(TheState().mutex);
  stream = Resolve(stream);
  if (stream->capture) return kCaptureUnsupported;
  TheState().changed.wait(lock, [&] { return stream->queue.empty() && !stream->busy; });
  return TheState().fault;
}
EXPORT int cuStreamWaitEvent(StreamRecord* stream, EventRecord* event, unsigned) {
  ENTER(cuStreamWaitEvent);
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  stream = Resolve(stream);
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
  Submit(stream, [&state, event, wanted = event->recorded] {
    std::unique_lock inner(state.mutex);
    state.changed.wait(inner, [&] { return event->done >= wanted; });
  });
  return kOk;
}
EXPORT int cuStreamIsCapturing(StreamRecord* stream, int* status) {
  std::lock_guard lock(TheState().mutex);
  stream = Resolve(stream);
  *status = stream->capture ? 1 : 0;
  return kOk;
}
EXPORT int cuLaunchHostFunc(StreamRecord* stream, void (*function)(void*), void* data) {
  ENTER(cuLaunchHostFunc);
  std::lock_guard lock(TheState().mutex);
  stream = Resolve(stream);
  if (stream->capture) return kCaptureUnsupported;
  Submit(stream, [=] { function(data); });
  return kOk;
}
EXPORT int cuStreamBeginCapture_v2(StreamRecord* stream, int) {
  ENTER(cuStreamBeginCapture_v2);
  if (stream == nullptr) return kCaptureUnsupported;  // as CUDA says of the legacy default stream
  std::lock_guard lock(TheState().mutex);
  stream->capture = std::make_shared<GraphRecord>();
  stream->capture->streams.insert(stream);
  stream->frontier.clear();
  return kOk;
}
EXPORT int cuStreamEndCapture(StreamRecord* stream, std::shared_ptr<GraphRecord>** graph) {
  ENTER(cuStreamEndCapture);
  std::lock_guard lock(TheState().mutex);
  if (!stream->capture) return kInvalidValue;
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
    static_cast<StreamRecord*>(member)->capture.reset();
    static_cast<StreamRecord*>(member)->frontier.clear();
  }
  if (joined.size() < captured->nodes.size()) return kUnjoined;
  *graph = new std::shared_ptr<GraphRecord>(captured);
  return kOk;
}
EXPORT int cuEventCreate(EventRecord** event, unsigned) {
  ENTER(cuEventCreate);
  if (current == nullptr) return kInvalidContext;
  *event = new EventRecord{current};
  return kOk;
}
EXPORT int cuEventDestroy_v2(EventRecord* event) {
  delete event;
  return kOk;
}
EXPORT int cuEventRecord(EventRecord* event, StreamRecord* stream) {
  ENTER(cuEventRecord);
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  stream = Resolve(stream);
  if (event->context != stream->context) return kInvalidValue;
  event->capture = stream->capture;
  event->frontier = stream->frontier;
  if (stream->capture) return kOk;
  Submit(stream, [&state, event, number = ++event->recorded] {
    std::lock_guard inner(state.mutex);
    event->done = number;
    event->at = std::chrono::steady_clock::now();
    state.changed.notify_all();
  });
  return kOk;
}
EXPORT int cuEventQuery(EventRecord* event) {
  std::lock_guard lock(TheState().mutex);
  if (event->capture) return kCaptureUnsupported;
  return event->done >= event->recorded ? kOk : kNotReady;
}
EXPORT int cuEventElapsedTime(float* milliseconds, EventRecord* from, EventRecord* to) {
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
  *exec = new std::shared_ptr<GraphRecord>(*graph);
  return kOk;
}
EXPORT int cuGraphLaunch(std::shared_ptr<GraphRecord>* exec, StreamRecord* stream) {
  ENTER(cuGraphLaunch);
  std::lock_guard lock(TheState().mutex);
  Submit(stream, [graph = *exec] { RunGraph(*graph); });
  return kOk;
}
EXPORT int cuGraphExecDestroy(std::shared_ptr<GraphRecord>* exec) {
  delete exec;
  return kOk;
}
EXPORT int cuGraphDestroy(std::shared_ptr<GraphRecord>* graph) {
  delete graph;
  return kOk;
}
