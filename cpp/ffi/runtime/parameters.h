// The parameters of a module: embedded in it, or external until they are loaded.
#ifndef TVM_SCHED_FFI_RUNTIME_PARAMETERS_H_
#define TVM_SCHED_FFI_RUNTIME_PARAMETERS_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cuda/devices.h"
#include "runtime/cuda/pinned_parameters.h"
#include "runtime/mapped_file.h"
#include "runtime/plan.h"
#include "runtime/read_ahead.h"

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

  /// Let go of the values that lie in files, until Reload. Returns their bytes.
  Bytes Unload();
  /// Map the files again for what Unload let go of and nobody has set since. Throws as Load does.
  void Reload();

  /// Load the file that the environment variable TVM_SCHED_PARAMETERS names, if something is
  /// missing and it names one; then throw ffi::Error (RuntimeError) if something is missing still.
  void Require(const Plan& plan);

  /// What waits until a parameter has been read from its file, and does nothing where it lies in no
  /// file or is not read ahead.
  std::function<void()> Reading(const std::string& name) const;

  const tvm::ffi::Tensor& Get(const std::string& name) const { return *entries_.at(name).value; }

  // For plans on GPUs, which read parameters in pinned memory: once for all instances.
  /// Begin to read values that are new since the last call, in the order of the plans' steps. Needs
  /// no GPU.
  void Read();
  /// Begin to read what is new, and pin the first of it; PinOthers, or a step that waits for one,
  /// begins to pin the others.
  void Pin(const cuda::Devices& devices);
  void PinOthers();
  /// A value in the pinned memory, which may still have to be awaited.
  cuda::PinnedParameter GetPinned(const std::string& name) const;
  /// The value in memory of a device's GPU, copied there from the pinned one; it stays as long as
  /// somebody holds it, also when the parameter has got another value.
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
    std::shared_ptr<const MappedFile> file;             // in which it lies, or null
    std::string path;                                   // of the file that it was read from, or ""
    std::shared_ptr<ReadAhead> reading;                 // what reads it ahead, or null
    std::size_t part = 0;                               // its number there
    std::shared_ptr<cuda::PinnedParameters> pinned;     // where GPUs can read it
    int source = 0;                                     // its number there
    std::map<int, std::shared_ptr<std::byte>> on_gpus;  // copies of it, by GPU

    void Assign(tvm::ffi::Tensor given, std::shared_ptr<const MappedFile> in = nullptr);
    void Forget();
  };

  Entry& Find(const std::string& name, const TensorSpec& found);
  /// Take values from a file; with `asleep`, those alone that Unload let go of.
  int LoadInto(const std::string& path, bool asleep);
  std::vector<std::string> Missing(const Plan& plan) const;

  /// Begin to read what steps read, in their order, where it lies in this file.
  void ReadAheadIn(const std::shared_ptr<const MappedFile>& file);
  /// Read these anew, into other memory.
  void ReadInto(const std::vector<Entry*>& entries);
  std::vector<Entry*> Needed();

  std::map<std::string, Entry> entries_;
  std::vector<std::string> needed_;  // by plans on GPUs, in the order of their steps
  std::vector<std::string> read_;    // by steps from the file, in their order
  int queue_depth_ = 1;              // of those reads
  std::optional<cuda::Pinning> pinning_;
  std::uint64_t version_ = 0;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_PARAMETERS_H_
