#include "runtime/cuda/cuda_backend.h"

#include <dlpack/dlpack.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "runtime/cores.h"
#include "runtime/cuda/stream_ends.h"

namespace tvm_sched::runtime {

using cuda::Check;
using cuda::DevicePointer;
using cuda::Driver;
using cuda::kHostMemory;
using cuda::StepRoute;

namespace {

/// For the time of a kernel's call: the stream on which it launches.
class CurrentStream {
 public:
  CurrentStream(int gpu, cuda::Stream stream) : gpu_(gpu) {
    TVMFFIEnvSetStream(kDLCUDA, gpu_, stream, &former_);
  }
  ~CurrentStream() { TVMFFIEnvSetStream(kDLCUDA, gpu_, former_, nullptr); }
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;

 private:
  int gpu_;
  TVMFFIStreamHandle former_ = nullptr;
};

std::vector<int> GpusOf(const cuda::Devices& devices) {
  std::vector<int> gpus;
  for (int d = 0; d < devices.count(); ++d) gpus.push_back(devices.Gpu(d));
  return gpus;
}

}  // namespace

CudaBackend::CudaBackend(std::shared_ptr<const Plan> plan,
                         std::shared_ptr<const cuda::Devices> devices)
    : plan_(std::move(plan)),
      devices_(std::move(devices)),
      routes_(cuda::MakeStepRoutes(*plan_, GpusOf(*devices_))),
      last_stream_(plan_->queues.size(), -1),
      callers_(devices_) {
  MakeStreams();
  for (const StepRoute& route : routes_.steps) {
    devices_->Enter(streams_[route.stream].device);
    ends_.push_back(cuda::MakeEvent(cuda::kEventDisableTiming));
  }
  MakeStagedCopies();
  FindNextLoads();
}

CudaBackend::~CudaBackend() {
  // What a failed run left on the streams still uses events and staging memory.
  try {
    const cuda::ContextGuard guard;
    // Streams wait for each other's events, so all have ended before the first one goes.
    Drain();
    for (const StreamOfQueue& stream : streams_) {
      devices_->Enter(stream.device);
      cuda::EndStream(stream.handle.get());
    }
  } catch (const cuda::CudaError&) {
    // A forked child: all of it is the parent's.
  }
}

void CudaBackend::MakeStreams() {
  for (const cuda::StreamKey& key : routes_.streams) {
    devices_->Enter(key.device);
    int least = 0, greatest = 0;
    Check(Driver().StreamPriorityRange(&least, &greatest), "asking for priorities failed");
    // The higher priority of copies is for those that a driver does by kernels: CUDA promises
    // nothing of priorities for copies between the host and a GPU, which take turns on copy
    // engines.
    const auto make_event = [] { return cuda::MakeEvent(cuda::kEventDisableTiming); };
    streams_.push_back({cuda::MakeStream(key.copies ? greatest : least), make_event(), key.device,
                        key.copies ? nullptr : std::make_shared<cuda::EventHandle>(make_event())});
    if (const auto& workspace = plan_->devices[key.device].workspace) {
      cuda::PlanWorkspace(streams_.back().handle.get(), static_cast<std::size_t>(workspace->count));
    }
  }
}

void CudaBackend::MakeStagedCopies() {
  for (const StepRoute& route : routes_.steps) {
    if (route.from == kHostMemory || route.to == kHostMemory) continue;
    if (devices_->Reaches(route.from, route.to)) continue;
    auto& staged = staged_[{route.stream, route.from}];
    if (!staged) {
      staged = std::make_unique<cuda::StagedCopy>(*devices_, route.from, route.to);
    }
  }
}

void CudaBackend::FindNextLoads() {
  next_load_.assign(plan_->steps.size(), -1);
  loaded_.assign(plan_->steps.size(), 0);
  const auto loads = [&](int index) {
    const Step& step = plan_->steps[index];
    return step.kind == StepKind::kCopy &&
           plan_->buffers[step.inputs[0]].source.kind == SourceKind::kParameter &&
           plan_->buffers[step.outputs[0]].source.kind == SourceKind::kArena;
  };
  for (const std::vector<int>& steps : plan_->StepsOfQueues()) {
    for (std::size_t k = 1; k < steps.size(); ++k) {
      const int before = steps[k - 1];
      if (!loads(before) || !loads(steps[k])) continue;
      const Step& step = plan_->steps[steps[k]];
      const Buffer& first = plan_->buffers[plan_->steps[before].outputs[0]];
      const Buffer& second = plan_->buffers[step.outputs[0]];
      constexpr auto kStep = static_cast<std::int64_t>(kAlignment);
      // Nothing else begins between the end of the first and the next multiple of the alignment.
      const std::int64_t end = first.source.offset.count + first.spec.size().count;
      const bool behind = first.source.index == second.source.index &&
                          second.source.offset.count == (end + kStep - 1) / kStep * kStep;
      const bool free = std::all_of(step.waits.begin(), step.waits.end(), [&](int wait) {
        return plan_->steps[wait].queue == step.queue;
      });
      if (behind && free) next_load_[before] = steps[k];
    }
  }
}

Bytes CudaBackend::TakeNextLoads(int step, const std::byte* to, const std::byte* from, Bytes size,
                                 const RunContext& run) {
  // A copy takes some microseconds whatever its size. What a kernel waits for must not grow much.
  constexpr std::int64_t kLargest = 256 << 10, kTogether = 1 << 20;
  if (run.timed || size.count > kLargest) return size;
  const cuda::PinnedParameters* memory = PinnedOf(step).memory.get();
  for (int next = next_load_[step]; next >= 0; next = next_load_[next]) {
    const cuda::PinnedParameter& parameter = PinnedOf(next);
    if (!run.skipped.empty() && run.skipped[next]) break;
    if (parameter.size.count > kLargest || parameter.memory.get() != memory) break;
    const std::byte* target = (*buffers_)[plan_->steps[next].outputs[0]];
    const Bytes together{target - to + parameter.size.count};
    if (parameter.data - from != target - to || together.count > kTogether) break;
    if (!memory->InOnePiece(from, together)) break;
    size = together;
    loaded_[next] = 1;
  }
  return size;
}

void CudaBackend::MakeTimers() {
  if (!starts_.empty()) return;
  std::vector<cuda::EventHandle> starts, ends;  // all or none
  std::map<int, Anchor> anchors;
  for (const StepRoute& route : routes_.steps) {
    devices_->Enter(streams_[route.stream].device);
    starts.push_back(cuda::MakeEvent(cuda::kEventDefault));
    ends.push_back(cuda::MakeEvent(cuda::kEventDefault));
  }
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    const int gpu = devices_->Gpu(streams_[s].device);
    if (anchors.count(gpu) > 0) continue;
    devices_->Enter(streams_[s].device);
    anchors[gpu] = {cuda::MakeEvent(cuda::kEventDefault),
                    cuda::MakeEvent(cuda::kEventDefault),
                    {},
                    static_cast<int>(s)};
  }
  starts_ = std::move(starts);
  timed_ends_ = std::move(ends);
  anchors_ = std::move(anchors);
}

const cuda::PinnedParameter& CudaBackend::PinnedOf(int step) const {
  static const cuda::PinnedParameter kNone;
  return pinned_ == nullptr ? kNone : (*pinned_)[plan_->steps[step].inputs[0]];
}

void CudaBackend::PrepareSteps(const std::vector<Kernel>& preparations) {
  for (std::size_t step = 0; step < preparations.size(); ++step) {
    if (!preparations[step]) continue;
    const StreamOfQueue& stream = streams_[routes_.steps[step].stream];
    devices_->Enter(stream.device);
    const CurrentStream current(devices_->Gpu(stream.device), stream.handle.get());
    preparations[step]();
  }
}

void CudaBackend::WarmUpSteps(const std::vector<Kernel>& warm_ups) {
  try {
    PrepareSteps(warm_ups);
  } catch (...) {
    Drain();
    throw;
  }
  for (const StreamOfQueue& stream : streams_) {
    CheckStream(Driver().StreamSynchronize(stream.handle.get()), stream);
  }
}

void CudaBackend::Begin(const RunContext& run) {
  devices_->Enter(0);
  began_ = run.began;
  timed_ = run.timed;
  last_stream_.assign(last_stream_.size(), -1);
  loaded_.assign(loaded_.size(), 0);
  if (turns_) AwaitTurn();
  for (cuda::Event arrived : callers_.Arrive()) {
    for (const StreamOfQueue& stream : streams_) {
      Check(Driver().StreamWaitEvent(stream.handle.get(), arrived, 0), "a stream cannot wait");
    }
  }
}

void CudaBackend::AwaitTurn() {
  const cuda::Turns::Ends& before = turns_->Take();
  taken_ = turns_;
  for (const StreamOfQueue& stream : streams_) {
    const auto found = before.find(devices_->Gpu(stream.device));
    if (!stream.last_kernel || found == before.end()) continue;
    devices_->Enter(stream.device);
    for (const auto& end : found->second) {
      Check(Driver().StreamWaitEvent(stream.handle.get(), end->get(), 0), "a stream cannot wait");
    }
  }
}

void CudaBackend::Issued() {
  PassTurn();
  if (callers_.empty()) return;
  std::vector<cuda::Event> ends;
  for (const StreamOfQueue& stream : streams_) {
    Check(Driver().EventRecord(stream.mark.get(), stream.handle.get()), "an event was refused");
    ends.push_back(stream.mark.get());
  }
  callers_.Leave(ends);
}

void CudaBackend::PassTurn() {
  if (!taken_) return;
  cuda::Turns::Ends ends;
  try {
    for (const StreamOfQueue& stream : streams_) {
      if (!stream.last_kernel) continue;
      devices_->Enter(stream.device);
      Check(Driver().EventRecord(stream.last_kernel->get(), stream.handle.get()),
            "an event was refused");
      ends[devices_->Gpu(stream.device)].push_back(stream.last_kernel);
    }
  } catch (...) {
    std::exchange(taken_, nullptr)->Pass({});
    throw;
  }
  std::exchange(taken_, nullptr)->Pass(std::move(ends));
}

void CudaBackend::ReadClocks() {
  MakeTimers();
  for (auto& [gpu, anchor] : anchors_) {
    devices_->EnterGpu(gpu);
    ReadClock(anchor);
  }
}

/// What host and GPU call the same moment: an event on an idle stream lies between two readings of
/// the host's clock, the closest two of a few. The later one counts, so that no step seems to begin
/// before its run.
void CudaBackend::ReadClock(Anchor& anchor) const {
  constexpr int kReadings = 4;
  const cuda::Stream stream = streams_[anchor.stream].handle.get();
  Nanoseconds shortest = Nanoseconds::max();
  for (int reading = 0; reading < kReadings; ++reading) {
    const Clock::time_point before = Clock::now();
    Check(Driver().EventRecord(anchor.spare.get(), stream), "a clock cannot be read");
    Check(Driver().StreamSynchronize(stream), "a clock cannot be read");
    const Clock::time_point after = Clock::now();
    if (after - before >= shortest) continue;
    shortest = after - before;
    std::swap(anchor.event, anchor.spare);
    anchor.time = after;
  }
}

/// The step's stream, in its place after the steps of its queue before it.
cuda::Stream CudaBackend::Enter(int step) {
  const StepRoute& route = routes_.steps[step];
  const StreamOfQueue& mine = streams_[route.stream];
  devices_->Enter(mine.device);
  int& last = last_stream_[route.queue];
  if (last >= 0 && last != route.stream) Follow(mine.handle.get(), streams_[last]);
  last = route.stream;
  if (timed_) {
    Check(Driver().EventRecord(starts_[step].get(), mine.handle.get()), "an event was refused");
  }
  return mine.handle.get();
}

void CudaBackend::Follow(cuda::Stream stream, const StreamOfQueue& earlier) {
  Check(Driver().EventRecord(earlier.mark.get(), earlier.handle.get()), "an event was refused");
  Check(Driver().StreamWaitEvent(stream, earlier.mark.get(), 0), "a stream cannot wait");
}

int CudaBackend::Workers() const {
  static const int cores = Cores();
  const char* given = std::getenv("TVM_SCHED_ISSUING_THREADS");
  if (given == nullptr || *given == '\0') return cores;
  const std::string text = given;
  const bool number = text.size() < 4 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!number || std::stoi(text) < 1) {
    throw std::invalid_argument("TVM_SCHED_ISSUING_THREADS is \"" + text +
                                "\", expected a number from 1 to 999");
  }
  return std::stoi(text);
}

bool CudaBackend::AwaitParameters(const std::vector<int>& buffers, const RunContext& run) const {
  if (pinned_ == nullptr) return true;
  for (int buffer : buffers) {
    const cuda::PinnedParameter& parameter = (*pinned_)[buffer];
    if (!parameter.memory) continue;
    if (!parameter.memory->Await(parameter.data, parameter.size, run.stopped)) return false;
  }
  return true;
}

Interval CudaBackend::Launch(const Kernel& kernel, const Timing& timing, const RunContext& run) {
  if (!AwaitParameters(plan_->steps[timing.step].inputs, run)) return {};
  const int device = streams_[routes_.steps[timing.step].stream].device;
  const CurrentStream current(devices_->Gpu(device), Enter(timing.step));
  kernel();
  return {};
}

Interval CudaBackend::Copy(void* to, const void* from, Bytes size, const Timing& timing,
                           const RunContext& run) {
  const StepRoute& route = routes_.steps[timing.step];
  if (!AwaitParameters(plan_->steps[timing.step].inputs, run)) return {};
  const cuda::Stream stream = Enter(timing.step);
  if (size.count == 0 || to == from) return {};
  const auto target = reinterpret_cast<DevicePointer>(to);
  const auto source = reinterpret_cast<DevicePointer>(from);
  const bool between = route.from != kHostMemory && route.to != kHostMemory;
  if (between && !devices_->Reaches(route.from, route.to)) {
    staged_.at({route.stream, route.from})->Issue(target, source, size, stream);
  } else {
    // A load, an unload or, between two GPUs with peer access, a peer copy: addresses are unified,
    // so the driver knows which one it is (it does what cuMemcpyPeerAsync would).
    const auto part = [&](std::int64_t offset, std::int64_t count) {
      Check(Driver().CopyAsync(target + static_cast<DevicePointer>(offset),
                               source + static_cast<DevicePointer>(offset),
                               static_cast<std::size_t>(count), stream),
            "the copy was refused");
    };
    if (const cuda::PinnedParameter& parameter = PinnedOf(timing.step); !parameter.memory) {
      part(0, size.count);
    } else if (!std::exchange(loaded_[timing.step], 0)) {
      size = TakeNextLoads(timing.step, static_cast<const std::byte*>(to),
                           static_cast<const std::byte*>(from), size, run);
      parameter.memory->ForEachPart(from, size, part);
    }
  }
  return {};
}

Interval CudaBackend::Occupy(const Timing& timing, const RunContext&) {
  // The bytes cross the bus inside the kernel that reads them.
  Enter(timing.step);
  return {};
}

void CudaBackend::Wait(int step, int earlier) {
  const StreamOfQueue& mine = streams_[routes_.steps[step].stream];
  Check(Driver().StreamWaitEvent(mine.handle.get(), EndOf(earlier), 0), "a stream cannot wait");
}

void CudaBackend::Record(int step) {
  const StreamOfQueue& mine = streams_[routes_.steps[step].stream];
  Check(Driver().EventRecord(EndOf(step), mine.handle.get()), "an event was refused");
}

void CudaBackend::CheckStream(cuda::Result result, const StreamOfQueue& stream) const {
  if (result == cuda::kSuccess) return;  // the text costs what the query does
  Check(result, "a kernel or copy failed on GPU " + std::to_string(devices_->Gpu(stream.device)));
}

bool CudaBackend::Finished() {
  for (const StreamOfQueue& stream : streams_) {
    const cuda::Result result = Driver().StreamQuery(stream.handle.get());
    if (result == cuda::kNotReady) return false;
    CheckStream(result, stream);
  }
  return callers_.Finished();
}

void CudaBackend::Drain() noexcept {
  try {
    // Those first that others wait for.
    for (const auto& [key, staged] : staged_) staged->Drain();
    for (const StreamOfQueue& stream : streams_) {
      Driver().StreamSynchronize(stream.handle.get());
    }
    callers_.Drain();
  } catch (const cuda::CudaError&) {
    // A forked child: all of it is the parent's. Or a GPU is lost, and nothing runs there.
  }
}

void CudaBackend::Sleep(Nanoseconds limit) {
  std::vector<cuda::Stream> streams;
  for (const StreamOfQueue& stream : streams_) {
    const cuda::Result result = Driver().StreamQuery(stream.handle.get());
    if (result == cuda::kNotReady) {
      streams.push_back(stream.handle.get());
    } else {
      CheckStream(result, stream);
    }
  }
  if (streams.empty()) {
    std::this_thread::yield();  // only the caller's copies are left
  } else {
    completion_.Sleep(streams, limit);
  }
}

bool CudaBackend::Ended(int step) { return Driver().EventQuery(EndOf(step)) != cuda::kNotReady; }

Interval CudaBackend::TimesOf(int step) {
  const int device = streams_[routes_.steps[step].stream].device;
  const Anchor& anchor = anchors_.at(devices_->Gpu(device));
  const auto at = [&](cuda::Event event) {
    float milliseconds = 0;
    Check(Driver().EventElapsedTime(&milliseconds, anchor.event.get(), event),
          "the time of a step cannot be read");
    const auto since = Nanoseconds(std::llround(static_cast<double>(milliseconds) * 1e6));
    return anchor.time + since - began_;
  };
  return {at(starts_[step].get()), at(timed_ends_[step].get())};
}

void CudaBackend::BeginCapture() {
  timed_ = false;
  last_stream_.assign(last_stream_.size(), -1);
  loaded_.assign(loaded_.size(), 0);
  const StreamOfQueue& origin = streams_.front();
  devices_->Enter(origin.device);
  // Relaxed: libraries may make what they need at a kernel's first call.
  Check(Driver().StreamBeginCapture(origin.handle.get(), cuda::kCaptureRelaxed),
        "a graph cannot be captured");
  Check(Driver().EventRecord(origin.mark.get(), origin.handle.get()), "a graph cannot be captured");
  for (std::size_t s = 1; s < streams_.size(); ++s) {
    Check(Driver().StreamWaitEvent(streams_[s].handle.get(), origin.mark.get(), 0),
          "a graph cannot be captured");
  }
}

std::function<void()> CudaBackend::EndCapture() {
  const StreamOfQueue& origin = streams_.front();
  for (std::size_t s = 1; s < streams_.size(); ++s) Follow(origin.handle.get(), streams_[s]);
  devices_->Enter(origin.device);
  cuda::Graph captured = nullptr;
  Check(Driver().StreamEndCapture(origin.handle.get(), &captured), "a graph cannot be captured");
  const cuda::GraphHandle graph(captured);
  cuda::GraphExec made = nullptr;
  Check(Driver().GraphInstantiate(&made, captured, 0), "a captured graph cannot be made to run");
  return [this, exec = std::make_shared<cuda::GraphExecHandle>(made)] {
    devices_->Enter(streams_.front().device);
    Check(Driver().GraphLaunch(exec->get(), streams_.front().handle.get()),
          "the captured graph was refused");
  };
}

void CudaBackend::AbandonCapture() noexcept {
  cuda::Graph graph = nullptr;
  if (Driver().StreamEndCapture(streams_.front().handle.get(), &graph) == cuda::kSuccess) {
    Driver().GraphDestroy(graph);
  }
}

}  // namespace tvm_sched::runtime
