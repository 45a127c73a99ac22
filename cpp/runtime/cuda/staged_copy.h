// Copies between GPUs that do not reach each other: through pinned host memory, in chunks.
#ifndef TVM_SCHED_RUNTIME_CUDA_STAGED_COPY_H_
#define TVM_SCHED_RUNTIME_CUDA_STAGED_COPY_H_

#include <array>
#include <memory>

#include "runtime/cuda/devices.h"
#include "runtime/cuda/handles.h"

namespace tvm_sched::runtime::cuda {

/// One way from a device to another. Two chunks are under way: while one goes into the receiver,
/// the next leaves the sender. Everything waits on events; the host only issues.
class StagedCopy {
 public:
  static constexpr Bytes kChunk{4 << 20};

  StagedCopy(const Devices& devices, int from, int to);

  /// Copy as a part of `receiver`, a stream on the receiving device: after what was issued there
  /// before, and before what will be. One caller at a time.
  void Issue(DevicePointer to, DevicePointer from, Bytes size, Stream receiver);
  /// Wait for what was sent, whatever fails.
  void Drain() const { Driver().StreamSynchronize(sender_.get()); }

 private:
  struct Slot {
    std::shared_ptr<std::byte> memory;
    EventHandle filled;   // on the sender's stream
    EventHandle drained;  // on the receiver's
    bool used = false;    // in this copy
  };

  const Devices& devices_;
  int from_, to_;
  StreamHandle sender_;
  EventHandle begun_;
  std::array<Slot, 2> slots_;
};

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_STAGED_COPY_H_
