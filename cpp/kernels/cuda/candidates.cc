#include "kernels/cuda/candidates.h"

#include <tvm/ffi/error.h>

#include <map>
#include <mutex>
#include <utility>

namespace tvm_sched::cuda_kernels {

using runtime::cuda::Check;
using runtime::cuda::Driver;

namespace {

constexpr double kClearly = 0.95;  // of the time of another candidate: what is taken for faster

/// Labels of what was chosen in this process, by key.
struct Choices {
  std::mutex mutex;
  std::map<std::string, std::string> labels;
};

Choices& TheChoices() {
  static Choices choices;
  return choices;
}

}  // namespace

FastestCandidate::FastestCandidate(std::string key, std::string name,
                                   std::vector<std::unique_ptr<Candidate>> candidates)
    : key_(std::move(key)), name_(std::move(name)), candidates_(std::move(candidates)) {}

void FastestCandidate::Run(const std::vector<void*>& data, Stream stream) {
  if (!ready_) Choose(data, stream);
  if (!chosen_->Run(data, workspace_.get(), stream)) {
    TVM_FFI_THROW(RuntimeError) << chosen_->label() << " failed in the kernel \"" << name_ << "\"";
  }
}

bool FastestCandidate::Take(std::size_t candidate) {
  const std::size_t size = candidates_[candidate]->workspace();
  if (size > LargestWorkspace()) return false;
  chosen_ = candidates_[candidate].get();
  workspace_ = size > 0 ? AllocateWorkspace(size, name_) : nullptr;
  return true;
}

void FastestCandidate::Choose(const std::vector<void*>& data, Stream stream) {
  Choices& choices = TheChoices();
  const std::lock_guard lock(choices.mutex);
  const auto known = choices.labels.find(key_);
  for (std::size_t k = 0; known != choices.labels.end() && k < candidates_.size(); ++k) {
    ready_ = candidates_[k]->label() == known->second && Take(k);
    if (ready_) return;
  }
  int capturing = runtime::cuda::kCaptureNone;
  Check(Driver().StreamIsCapturing(stream, &capturing), name_);
  const bool timed = capturing == runtime::cuda::kCaptureNone && candidates_.size() > 1;
  std::size_t best = candidates_.size();
  double least = 0;
  for (std::size_t k = 0; k < candidates_.size(); ++k) {
    if (!Take(k)) continue;
    const double time = timed ? MillisecondsOf(data, stream) : 0;
    if (time < 0 || (best < candidates_.size() && time >= kClearly * least)) continue;
    best = k;
    least = time;
    if (!timed) break;  // the first by preference that can be taken
  }
  if (best == candidates_.size() || !Take(best)) {
    TVM_FFI_THROW(RuntimeError) << "no library has an algorithm for the kernel \"" << name_ << "\"";
  }
  choices.labels[key_] = chosen_->label();
  ready_ = true;
}

/// Milliseconds of a call, negative where it is refused: several between two events, the least of a
/// few. They are one captured graph, so that the host's part of a launch does not count, unless
/// capture is refused.
double FastestCandidate::MillisecondsOf(const std::vector<void*>& data, Stream stream) {
  constexpr int kRounds = 3, kCalls = 10;
  // What is made at a first call cannot be captured.
  if (!chosen_->Run(data, workspace_.get(), stream)) return -1;
  Check(Driver().StreamSynchronize(stream), name_);
  const runtime::cuda::GraphExecHandle graph = Capture(data, stream, kCalls);
  const auto begin = runtime::cuda::MakeEvent(runtime::cuda::kEventDefault);
  const auto end = runtime::cuda::MakeEvent(runtime::cuda::kEventDefault);
  double least = -1;
  for (int round = 0; round <= kRounds; ++round) {  // the first only warms up
    Check(Driver().EventRecord(begin.get(), stream), name_);
    if (graph.get() != nullptr) {
      Check(Driver().GraphLaunch(graph.get(), stream), name_);
    } else if (!RunSeveral(data, stream, kCalls)) {
      return -1;
    }
    Check(Driver().EventRecord(end.get(), stream), name_);
    Check(Driver().StreamSynchronize(stream), name_);
    float time = 0;
    Check(Driver().EventElapsedTime(&time, begin.get(), end.get()), name_);
    if (round == 1 || (round > 1 && time < least)) least = time;
  }
  return least / kCalls;
}

bool FastestCandidate::RunSeveral(const std::vector<void*>& data, Stream stream, int calls) {
  for (int k = 0; k < calls; ++k) {
    if (!chosen_->Run(data, workspace_.get(), stream)) return false;
  }
  return true;
}

/// A graph of some calls; none where the library or the driver refuses it, as it does for the
/// legacy default stream.
runtime::cuda::GraphExecHandle FastestCandidate::Capture(const std::vector<void*>& data,
                                                         Stream stream, int calls) {
  if (Driver().StreamBeginCapture(stream, runtime::cuda::kCaptureRelaxed) !=
      runtime::cuda::kSuccess) {
    return {};
  }
  const bool executed = RunSeveral(data, stream, calls);
  runtime::cuda::Graph captured = nullptr;
  const bool ended = Driver().StreamEndCapture(stream, &captured) == runtime::cuda::kSuccess;
  const runtime::cuda::GraphHandle graph(captured);
  runtime::cuda::GraphExec made = nullptr;
  if (!executed || !ended ||
      Driver().GraphInstantiate(&made, captured, 0) != runtime::cuda::kSuccess) {
    return {};
  }
  return runtime::cuda::GraphExecHandle(made);
}

}  // namespace tvm_sched::cuda_kernels
