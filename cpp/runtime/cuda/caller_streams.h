// Tensors of a run's caller that lie on GPUs: they come and go in the order of the caller's own
// streams, so that neither side has to wait for a GPU on the host.
#ifndef TVM_SCHED_RUNTIME_CUDA_CALLER_STREAMS_H_
#define TVM_SCHED_RUNTIME_CUDA_CALLER_STREAMS_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/cuda/devices.h"
#include "runtime/cuda/handles.h"

namespace tvm_sched::runtime::cuda {

struct Transfer {
  void* to;
  const void* from;
  Bytes size;
};

/// What one stream of the caller brings before a run, and takes after it.
struct Exchange {
  int gpu;
  Stream stream;  // null: the default stream
  std::vector<Transfer> arriving, leaving;
};

class CallerStreams {
 public:
  explicit CallerStreams(std::shared_ptr<const Devices> devices) : devices_(std::move(devices)) {}

  /// Those of the run to come.
  void Set(std::vector<Exchange> exchanges) { exchanges_ = std::move(exchanges); }
  bool empty() const { return exchanges_.empty(); }

  /// Copy what arrives, after what the caller has issued; return where that has ended, one event
  /// for each stream of the caller. Throws CudaError for a stream that is being captured.
  std::vector<Event> Arrive();
  /// Copy what leaves, after `ends`; nothing where Arrive failed.
  void Leave(const std::vector<Event>& ends);
  /// Whether what leaves has left. Throws where a GPU failed.
  bool Finished() const;
  /// Wait for what was copied, whatever fails.
  void Drain() const;

 private:
  struct Marks {
    EventHandle arrived, left;
  };

  Marks& MarksOf(int gpu);
  void Issue(const Exchange& exchange, const std::vector<Transfer>& transfers) const;

  std::shared_ptr<const Devices> devices_;
  std::vector<Exchange> exchanges_;
  bool arrived_ = false;
  std::map<int, Marks> marks_;  // by GPU
};

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_CALLER_STREAMS_H_
