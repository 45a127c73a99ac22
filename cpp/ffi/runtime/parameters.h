// The parameters of a module: embedded in it, or external until they are loaded.
#ifndef TVM_SCHED_FFI_RUNTIME_PARAMETERS_H_
#define TVM_SCHED_FFI_RUNTIME_PARAMETERS_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cuda/devices.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

class ParameterStore {
 public:
  using Embedded = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Tensor>;

  /// Every parameter of the plans has one entry. Throws ffi::Error (ValueError) where an embedded
  /// tensor is no parameter or not of its type.
  ParameterStore(const std::vector<std::shared_ptr<const Plan>>& plans, const Embedded& embedded);

  /// Give a parameter its value, in place of a former one.
  void Set(const std::string& name, const tvm::ffi::Tensor& tensor);

  /// Map a safetensors file. All external parameters must be in it; what the plans don't know is
  /// passed over. Nothing changes where anything is wrong. Returns the number of those taken.
  int Load(const std::string& path);

  /// Load the file that the environment variable TVM_SCHED_PARAMETERS names, if something is
  /// missing and it names one; then throw ffi::Error (RuntimeError) if something is missing still.
  void Require(const Plan& plan);

  const tvm::ffi::Tensor& Get(const std::string& name) const { return *entries_.at(name).value; }
  /// The value in pinned memory, which is made and filled at the first call after a change; one for
  /// all instances.
  const tvm::ffi::Tensor& GetPinned(const std::string& name, const cuda::Devices& devices);
  /// The value in memory of a device's GPU, made as the pinned one is; it stays as long as somebody
  /// holds it, also when the parameter has got another value.
  std::shared_ptr<std::byte> GetOnGpu(const std::string& name, const cuda::Devices& devices,
                                      int device);
  /// Whether all parameters of a plan have values.
  bool Complete(const Plan& plan) const { return Missing(plan).empty(); }
  bool Has(const std::string& name) const { return entries_.count(name) > 0; }
  /// Changes with every change of a value.
  std::uint64_t version() const { return version_; }
  Embedded embedded() const;
  /// A JSON list of name, shape, dtype, "embedded" and "loaded" of every parameter.
  std::string Describe() const;

 private:
  struct Entry {
    TensorSpec spec;
    bool embedded = false;
    std::optional<tvm::ffi::Tensor> value;
    std::optional<tvm::ffi::Tensor> pinned;             // a copy of it that GPUs can read
    std::map<int, std::shared_ptr<std::byte>> on_gpus;  // copies of it, by GPU

    void Assign(tvm::ffi::Tensor given);
  };

  Entry& Find(const std::string& name, const TensorSpec& found);
  std::vector<std::string> Missing(const Plan& plan) const;

  std::map<std::string, Entry> entries_;
  std::uint64_t version_ = 0;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_PARAMETERS_H_
