#include "kernels/cuda/candidates.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/nvidia_libraries.h"
#include "kernels/cuda/value_check.h"
#include "runtime/cache_lines.h"
#include "runtime/cuda/gpus.h"
#include "runtime/throw.h"

namespace tvm_sched::cuda_kernels {

using runtime::cuda::Check;
using runtime::cuda::Driver;

namespace {

constexpr double kClearly = 0.95;  // of the time of another candidate: what is taken for faster
constexpr double kHopeless = 3;    // times as long as another in one call: not timed further

/// What a choice depends on besides its kernel: the GPUs and the libraries.
std::string Machine() {
  std::string machine;
  for (const auto& gpu : runtime::cuda::ListGpus()) machine += gpu.name + ", ";
  for (const auto& library : FindLibraries()) {
    machine += library.name + " " + std::to_string(library.version) + ", ";
  }
  return machine;
}

/// Labels of what was chosen in this process or, on the same machine, in earlier ones, by key.
class Choices {
 public:
  Choices() : file_("cuda_algorithms.txt"), machine_(file_.used() ? Machine() : "") {
    for (const std::string& line : file_.Read()) {
      const std::size_t key = machine_.size(), tab = line.find('\t');
      if (tab == std::string::npos || tab < key || line.compare(0, key, machine_) != 0) continue;
      labels[line.substr(key, tab - key)] = line.substr(tab + 1);
    }
  }

  void Keep(const std::string& key, const std::string& label, bool timed) {
    labels[key] = label;
    if (timed) file_.Add(machine_ + key + '\t' + label);
  }

  std::mutex mutex;
  std::map<std::string, std::string> labels;

 private:
  runtime::CacheLines file_;  // so that only the first process pays for timing
  std::string machine_;
};

Choices& TheChoices() {
  static Choices choices;
  return choices;
}

}  // namespace

FastestCandidate::FastestCandidate(std::string key, std::string name,
                                   std::vector<std::unique_ptr<Candidate>> candidates,
                                   std::function<PlainKernel()> plain)
    : key_(std::move(key)),
      name_(std::move(name)),
      candidates_(std::move(candidates)),
      plain_(std::move(plain)) {}

void FastestCandidate::Run(const std::vector<void*>& data, Stream stream) {
  if (!ready_ || !checked_) Choose(data, stream);
  if (!chosen_->Run(data, workspace_.get(), stream)) {
    TVM_SCHED_THROW(RuntimeError) << chosen_->label() << " failed in the kernel \"" << name_
                                  << "\"";
  }
}

bool FastestCandidate::Take(std::size_t candidate) {
  const std::size_t size = candidates_[candidate]->workspace();
  if (size > LargestWorkspace()) return false;
  chosen_ = candidates_[candidate].get();
  workspace_ = size > 0 ? AllocateWorkspace(size, name_) : nullptr;
  return true;
}

bool FastestCandidate::IsChosenRight(Stream stream) {
  return !chosen_->foreign() || IsRight(*chosen_, key_, plain_, workspace_.get(), stream);
}

void FastestCandidate::Choose(const std::vector<void*>& data, Stream stream) {
  Choices& choices = TheChoices();
  const std::lock_guard lock(choices.mutex);
  int capturing = runtime::cuda::kCaptureNone;
  Check(Driver().StreamIsCapturing(stream, &capturing), name_);
  const bool waits = capturing == runtime::cuda::kCaptureNone;  // which a capture does not allow
  if (ready_) {  // chosen in a capture, so its values were not compared
    checked_ = waits && IsChosenRight(stream);
    if (checked_ || !waits) return;
    captured_.push_back(workspace_);
  }
  checked_ = waits;
  const auto known = choices.labels.find(key_);
  for (std::size_t k = 0; known != choices.labels.end() && k < candidates_.size(); ++k) {
    ready_ =
        candidates_[k]->label() == known->second && Take(k) && (!waits || IsChosenRight(stream));
    if (ready_) return;
  }
  const bool timed = waits && candidates_.size() > 1;
  int wrong = 0;
  std::size_t best = candidates_.size();
  double least = 0;
  for (std::size_t k = 0; k < candidates_.size(); ++k) {
    if (!Take(k)) continue;
    if (waits && !IsChosenRight(stream)) {
      ++wrong;
      continue;
    }
    const double time =
        timed ? MillisecondsOf(data, stream, best < candidates_.size() ? least : 0) : 0;
    if (time < 0 || (best < candidates_.size() && time >= kClearly * least)) continue;
    best = k;
    least = time;
    if (!timed) break;  // the first by preference that can be taken
  }
  if (best == candidates_.size() || !Take(best)) {
    TVM_SCHED_THROW(RuntimeError) << "no library has an algorithm for the kernel \"" << name_
                                  << "\""
                                  << (wrong == 0
                                          ? ""
                                          : " whose values are right on this GPU (tvm-sched doctor "
                                            "lists them); compile the model again with "
                                            "TVM_SCHED_KERNEL_LIBRARIES= for TVM's own kernels");
  }
  choices.Keep(key_, chosen_->label(), timed);
  ready_ = true;
}

/// Milliseconds of a call, negative where it is refused: several between two events, the least of a
/// few. They are one captured graph, so that the host's part of a launch does not count, unless
/// capture is refused. A call that takes far longer than `least`, that of another candidate, is
/// timed once: cuDNN has kernels for depthwise convolutions that take a second.
double FastestCandidate::MillisecondsOf(const std::vector<void*>& data, Stream stream,
                                        double least) {
  constexpr int kRounds = 3, kCalls = 10;
  constexpr double kMilliseconds = 5;  // of a call that is not repeated
  const auto begin = runtime::cuda::MakeEvent(runtime::cuda::kEventDefault);
  const auto end = runtime::cuda::MakeEvent(runtime::cuda::kEventDefault);
  const auto time = [&](const auto& run) {
    Check(Driver().EventRecord(begin.get(), stream), name_);
    if (!run()) return -1.0;
    Check(Driver().EventRecord(end.get(), stream), name_);
    Check(Driver().StreamSynchronize(stream), name_);
    float found = 0;
    Check(Driver().EventElapsedTime(&found, begin.get(), end.get()), name_);
    return static_cast<double>(found);
  };
  const auto once = [&] { return RunSeveral(data, stream, 1); };
  // What is made at a first call cannot be captured, and takes time of its own.
  double found = time(once);
  if (found < 0) return found;
  if (found > kMilliseconds || (least > 0 && found > kHopeless * least)) {
    found = time(once);
    if (found < 0 || found > kMilliseconds || (least > 0 && found > kHopeless * least))
      return found;
  }
  const runtime::cuda::GraphExecHandle graph = Capture(data, stream, kCalls);
  const auto several = [&] {
    if (graph.get() == nullptr) return RunSeveral(data, stream, kCalls);
    Check(Driver().GraphLaunch(graph.get(), stream), name_);
    return true;
  };
  if (time(several) < 0) return -1;  // only warms up
  found = time(several);
  for (int round = 1; round < kRounds; ++round) found = std::min(found, time(several));
  return found / kCalls;
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
