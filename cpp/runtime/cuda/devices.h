// The GPUs of a plan's devices: contexts, memory, peer access.
#ifndef TVM_SCHED_RUNTIME_CUDA_DEVICES_H_
#define TVM_SCHED_RUNTIME_CUDA_DEVICES_H_

#include <memory>
#include <vector>

#include "runtime/cuda/driver.h"
#include "runtime/units.h"

namespace tvm_sched::runtime::cuda {

/// GPUs by the plan's devices. Several of these may be one GPU, so that a schedule for four devices
/// runs, and can be checked, on one.
class Devices {
 public:
  /// `gpus`: the index of the GPU for each of the plan's `count` devices; empty: the first `count`.
  /// Throws CudaError where there are too few, std::invalid_argument where the list is wrong.
  Devices(int count, std::vector<int> gpus);

  int count() const { return static_cast<int>(gpus_.size()); }
  /// The GPU of a device.
  int Gpu(int device) const { return gpus_[device]; }
  Context ContextOf(int device) const { return contexts_[gpus_[device]]; }
  /// Make the device's, or a GPU's, context the calling thread's.
  void Enter(int device) const { EnterGpu(Gpu(device)); }
  void EnterGpu(int gpu) const;
  /// Whether a GPU is one of a device.
  bool Uses(int gpu) const;
  /// Whether a copy from one device to another goes straight, on one GPU or between peers: the
  /// receiver, which does it, reaches the sender's memory, and is not faster through the host.
  bool Reaches(int from, int to) const {
    return gpus_[from] == gpus_[to] || straight_[gpus_[to]][gpus_[from]];
  }
  /// Whether kernels and copies of a GPU reach the memory of another.
  bool Joined(int gpu, int other) const { return gpu == other || peers_[gpu][other]; }

  /// Whether all GPUs read registered memory of the host at the host's addresses, and whether they
  /// take what the process itself may only read.
  bool ReadRegisteredMemory() const { return All(kRegisteredAtHostAddress); }
  bool ReadOnlyRegistration() const { return All(kReadOnlyRegister); }

  /// Memory of a device, given back with the last reference; kernels of others may read it where
  /// they are peers.
  std::shared_ptr<std::byte> Allocate(int device, Bytes size) const {
    return AllocateOnGpu(Gpu(device), size);
  }
  std::shared_ptr<std::byte> AllocateOnGpu(int gpu, Bytes size) const;
  /// The same, filled from pinned memory.
  std::shared_ptr<std::byte> AllocateCopy(int device, const std::byte* pinned, Bytes size) const;
  /// Copy between a GPU and pinned memory, and wait until that has ended.
  void CopyAndWait(int gpu, std::byte* to, const std::byte* from, Bytes size) const;
  /// Pinned memory of the host that every device can read, as near as possible to the GPU of one.
  std::shared_ptr<std::byte> AllocateHost(Bytes size, int near = 0) const;

 private:
  void OpenGpus();
  void OpenGpu(int gpu);
  bool All(int attribute) const;
  void ConnectPeers();
  /// Whether a GPU got access to the memory of another one.
  bool Connect(int gpu, int other) const;

  std::vector<int> gpus_;          // of each device
  std::vector<Context> contexts_;  // of each GPU; null for those that are not used
  std::vector<int> nodes_;         // of each GPU: the host's memory that is near to it, or -1
  // Of each GPU and another one: whether it reaches its memory, and whether copies use that.
  std::vector<std::vector<bool>> peers_, straight_;
};

/// Copy within the host's memory, to or from pinned memory; much by several threads, since one core
/// moves some 10 GB/s, a fifth of what a GPU's bus does.
void CopyOnHost(std::byte* to, const std::byte* from, Bytes size);

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_DEVICES_H_
