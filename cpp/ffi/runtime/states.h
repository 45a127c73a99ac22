// What one run leaves for the next: the states of a module's plans, in the memory of the devices
// that compute them.
#ifndef TVM_SCHED_FFI_RUNTIME_STATES_H_
#define TVM_SCHED_FFI_RUNTIME_STATES_H_

#include <tvm/ffi/container/tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/devices.h"
#include "runtime/cuda/streams_of_steps.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// The states by name: plans that name one alike share it. For one run at a time. Zero at first.
class StateStore {
 public:
  StateStore() = default;
  explicit StateStore(const std::vector<std::shared_ptr<const Plan>>& plans);

  bool empty() const { return entries_.empty(); }

  /// Before a run of `plan`: bring its states to the devices where it has them, from where the plan
  /// before it left them; `devices` is null where these share the host's memory. Where it throws,
  /// no value is lost.
  void Place(const Plan& plan, const std::shared_ptr<const cuda::Devices>& devices);
  /// The memory of a state, or next state, of the plan that was placed.
  std::byte* At(const Plan& plan, const Source& source) const;
  /// After a run that ended well: what it wrote is what the next one reads.
  void Advance(const Plan& plan);
  /// Bring all to the host's memory, before GPUs are let go of.
  void Withdraw();

  /// Throws ffi::Error (ValueError) where there is no such state, or it is of another type.
  void Set(const std::string& name, const tvm::ffi::Tensor& value);
  /// A copy in the host's memory.
  tvm::ffi::Tensor Get(const std::string& name);

 private:
  using Memory = std::shared_ptr<std::byte>;

  struct Entry {
    TensorSpec spec;
    std::shared_ptr<const cuda::Devices> devices;  // null: on the host
    int gpu = cuda::kHostMemory;
    Memory current, next;  // one and the same of a state in place
    bool in_place = false;
  };

  Entry& Find(const std::string& name);
  static tvm::ffi::Tensor OnHost(const Entry& entry);
  static void PutOnHost(Entry* entry, const tvm::ffi::Tensor& value);

  std::map<std::string, Entry> entries_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_STATES_H_
