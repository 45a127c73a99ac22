// The arguments and outputs of runs on GPUs: where they lie, and how they come from and get to the
// caller's tensors, which are in the host's memory or on GPUs.
#ifndef TVM_SCHED_FFI_RUNTIME_GIVEN_MEMORY_H_
#define TVM_SCHED_FFI_RUNTIME_GIVEN_MEMORY_H_

#include <tvm/ffi/container/tensor.h>

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "runtime/cuda/caller_streams.h"
#include "runtime/cuda/devices.h"
#include "runtime/cuda/streams_of_steps.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// Where the arguments and outputs of a run lie: the number of a GPU, or kHostMemory for pinned
/// memory. Empty lists: all on the host.
struct Places {
  std::vector<int> arguments, outputs;
  int caller = cuda::kHostMemory;  // where the caller gets the outputs

  int Of(const Source& source) const {
    const auto& list = source.kind == SourceKind::kArgument ? arguments : outputs;
    return list.empty() ? cuda::kHostMemory : list[source.index];
  }
  bool operator==(const Places&) const = default;
};

/// A tensor in a GPU's memory, by the framework whose tensor the caller gave, such as PyTorch's
/// cache, where it says how.
tvm::ffi::Tensor AllocateOnGpu(const TensorSpec& spec, int gpu, const cuda::Devices& devices);

/// A copy of a tensor in a GPU's memory, after what the caller's stream has to do. Throws
/// ffi::Error (ValueError) where it is strided, or on a GPU that is none of the plan's.
tvm::ffi::Tensor CopyOnGpu(const tvm::ffi::Tensor& tensor, const cuda::Devices& devices);

/// Memory at addresses that stay from run to run, so that copies are asynchronous, kernels may read
/// it where it lies, and a captured graph holds in later runs.
class GivenMemory {
 public:
  using Tensors = std::vector<tvm::ffi::Tensor>;

  GivenMemory(std::shared_ptr<const Plan> plan, std::shared_ptr<const cuda::Devices> devices);

  /// The device of each step.
  const std::vector<int>& device_of_step() const { return device_of_step_; }

  /// Where arguments given so, and the outputs of their run, lie. Outputs are wanted where the
  /// first argument on a GPU is. What a step cannot reach on the caller's GPU goes through the
  /// host. Throws ffi::Error (ValueError) for an argument on a GPU that is none of the plan's.
  Places Place(const Tensors& arguments) const;
  /// The memory of an argument or output.
  std::byte* At(const Source& source, const Places& places);

  /// Tensors for the outputs of a run, in the memory where the caller gets them. On the host, the
  /// memory of outputs of earlier runs that nobody holds any more is taken again. `pinned`: outputs
  /// on the host are where the run writes them, as long as callers hold few of them; call it before
  /// At, whose answer changes.
  Tensors Allocate(const Places& places, bool pinned);
  /// Fill the memory on the host from arguments on the host.
  void Fill(const Tensors& arguments, const Places& places);
  /// What the calling thread's streams have to copy for arguments and outputs on GPUs.
  std::vector<cuda::Exchange> Exchanges(const Tensors& arguments, const Tensors& outputs,
                                        const Places& places);
  /// After a run: fill outputs on the host.
  void Collect(const Tensors& outputs, const Places& places);

 private:
  /// Memory for an output on the host.
  std::shared_ptr<std::byte> TakeFromPool(std::size_t output);
  /// Let the next run write an output into pinned memory that no caller holds; null where there is
  /// none that a caller may get.
  std::shared_ptr<std::byte> TakePinned(std::size_t output);
  /// The device of a step that touches an argument or output: memory on the host lies near to it.
  int DeviceOf(const Source& source) const;
  bool AllReach(SourceKind kind, int index, int gpu) const;
  Bytes SizeOf(const Source& source) const;

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const cuda::Devices> devices_;
  std::vector<int> device_of_step_;
  // By list, index and place.
  std::map<std::tuple<SourceKind, int, int>, std::shared_ptr<std::byte>> memory_;
  // Of each output: memory on the host that callers got; free where only the pool holds it.
  std::vector<std::vector<std::shared_ptr<std::byte>>> pool_, pinned_pool_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_GIVEN_MEMORY_H_
