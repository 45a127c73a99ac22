// GPUs through CUDA's driver: the host issues the steps of a plan on streams and goes on; streams
// wait for each other's events. docs/architecture.md, "CUDA", says what lies where.
#ifndef TVM_SCHED_RUNTIME_CUDA_CUDA_BACKEND_H_
#define TVM_SCHED_RUNTIME_CUDA_CUDA_BACKEND_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/backend.h"
#include "runtime/cuda/caller_streams.h"
#include "runtime/cuda/completion.h"
#include "runtime/cuda/devices.h"
#include "runtime/cuda/handles.h"
#include "runtime/cuda/pinned_parameters.h"
#include "runtime/cuda/staged_copy.h"
#include "runtime/cuda/streams_of_steps.h"
#include "runtime/cuda/turns.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// Streams and events of one plan, for one run at a time; they are made here, none in a run, but
/// for those that measure times, which the first timed run makes.
class CudaBackend final : public Backend, public Streams {
 public:
  CudaBackend(std::shared_ptr<const Plan> plan, std::shared_ptr<const cuda::Devices> devices);
  ~CudaBackend() override;

  /// Runs to come wait for their turn; null: they don't, as replayed graphs must not.
  void TakeTurns(std::shared_ptr<cuda::Turns> turns) { turns_ = std::move(turns); }
  /// Of each buffer: the parameter in pinned memory that it is. A step that reads one waits until
  /// it is read and pinned.
  using PinnedBuffers = std::vector<cuda::PinnedParameter>;
  /// `buffers` are the memory of all buffers, as steps get it.
  void UseParameters(const PinnedBuffers* pinned, const std::vector<std::byte*>* buffers) {
    pinned_ = pinned;
    buffers_ = buffers;
  }
  /// Do what steps can do before they are issued, each on its stream; empty where there is nothing.
  void PrepareSteps(const std::vector<Kernel>& preparations);
  /// The same with calls that launch something, and wait for it.
  void WarmUpSteps(const std::vector<Kernel>& warm_ups);
  /// What the next run takes from streams of its caller and leaves there.
  void Serve(std::vector<cuda::Exchange> exchanges) { callers_.Set(std::move(exchanges)); }

  std::shared_ptr<std::byte> Allocate(int device, Bytes size) override {
    return devices_->Allocate(device, size);
  }
  /// The kernel finds its stream in tvm_ffi's table (TVMFFIEnvGetStream) and its GPU's context
  /// entered.
  Interval Launch(const Kernel& kernel, const Timing& timing, const RunContext& run) override;
  Interval Copy(void* to, const void* from, Bytes size, const Timing& timing,
                const RunContext& run) override;
  Interval Occupy(const Timing& timing, const RunContext& run) override;
  int Workers() const override;
  void EnterQueue() override { devices_->Enter(0); }
  Streams* streams() override { return this; }

  void ReadClocks() override;
  void Begin(const RunContext& run) override;
  void Issued() override;
  void Wait(int step, int earlier) override;
  void Record(int step) override;
  bool Finished() override;
  void Drain() noexcept override;
  void Sleep(Nanoseconds limit) override;
  bool Ended(int step) override;
  Interval TimesOf(int step) override;
  void BeginCapture() override;
  std::function<void()> EndCapture() override;
  void AbandonCapture() noexcept override;

 private:
  struct StreamOfQueue {
    cuda::StreamHandle handle;
    cuda::EventHandle mark;  // where another stream takes over: of the queue, or of a capture
    int device;
    std::shared_ptr<cuda::EventHandle> last_kernel;  // null on streams of copies
  };
  /// Two clocks read at one time: an event on a GPU, and the host's.
  struct Anchor {
    cuda::EventHandle event, spare;
    Clock::time_point time;
    int stream;  // that it is recorded on
  };

  /// False where the run was stopped meanwhile. `buffers` are those of a step.
  bool AwaitParameters(const std::vector<int>& buffers, const RunContext& run) const;

  /// The parameter that a copy reads, or an empty one.
  const cuda::PinnedParameter& PinnedOf(int step) const;
  void FindNextLoads();
  /// The bytes that a load brings together with those after it, see next_load_.
  Bytes TakeNextLoads(int step, const std::byte* to, const std::byte* from, Bytes size,
                      const RunContext& run);

  void MakeStreams();
  void MakeStagedCopies();
  void MakeTimers();
  void ReadClock(Anchor& anchor) const;
  void AwaitTurn();
  void PassTurn();
  cuda::Stream Enter(int step);
  cuda::Event EndOf(int step) const { return (timed_ ? timed_ends_ : ends_)[step].get(); }
  void CheckStream(cuda::Result result, const StreamOfQueue& stream) const;
  void Follow(cuda::Stream stream, const StreamOfQueue& earlier);

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const cuda::Devices> devices_;
  cuda::StepRoutes routes_;
  std::vector<StreamOfQueue> streams_;
  std::vector<int> last_stream_;  // of each queue in this run, or -1
  std::vector<cuda::EventHandle> ends_;
  std::map<std::pair<int, int>, std::unique_ptr<cuda::StagedCopy>> staged_;  // by stream, sender

  const PinnedBuffers* pinned_ = nullptr;
  const std::vector<std::byte*>* buffers_ = nullptr;
  // Of each load of a parameter: the load that follows it at once in its queue, waits for no other
  // queue and writes the bytes behind it, or -1. Small ones become one copy where they lie behind
  // each other on the host, too.
  std::vector<int> next_load_;
  std::vector<char> loaded_;  // by step: that an earlier copy of this run has brought it

  std::shared_ptr<cuda::Turns> turns_;
  std::shared_ptr<cuda::Turns> taken_;  // by the run that issues its steps

  cuda::CallerStreams callers_;
  cuda::Completion completion_;

  Clock::time_point began_;
  bool timed_ = false;
  std::vector<cuda::EventHandle> starts_, timed_ends_;
  std::map<int, Anchor> anchors_;  // by GPU
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_CUDA_CUDA_BACKEND_H_
