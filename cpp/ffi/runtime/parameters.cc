#include "ffi/runtime/parameters.h"

#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "ffi/runtime/tensors.h"
#include "runtime/safetensors.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
using ffi::Tensor;

namespace {

constexpr const char* kVariable = "TVM_SCHED_PARAMETERS";

/// The first few names of a list, for a message.
std::string Few(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += (i ? ", \"" : "\"") + names[i] + "\"";
  }
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

void CheckType(const TensorSpec& wanted, const TensorSpec& found, const std::string& where) {
  if (wanted.SameType(found)) return;
  TVM_FFI_THROW(ValueError) << where << "parameter \"" << wanted.name << "\" is "
                            << found.ToString() << ", expected " << wanted.ToString();
}

}  // namespace

ParameterStore::ParameterStore(const std::vector<std::shared_ptr<const Plan>>& plans,
                               const Embedded& embedded) {
  for (const auto& plan : plans) {
    for (const TensorSpec& spec : plan->parameters) entries_[spec.name].spec = spec;
  }
  for (const auto& [name, tensor] : embedded) {
    Set(name, tensor);
    entries_.at(name).embedded = true;
  }
}

ParameterStore::Entry& ParameterStore::Find(const std::string& name, const TensorSpec& found) {
  auto entry = entries_.find(name);
  if (entry == entries_.end()) {
    std::vector<std::string> known;
    for (const auto& [other, unused] : entries_) known.push_back(other);
    TVM_FFI_THROW(ValueError) << "there is no parameter \"" << name << "\"; this module has "
                              << (known.empty() ? "none" : Few(known));
  }
  CheckType(entry->second.spec, found, "");
  return entry->second;
}

void ParameterStore::Set(const std::string& name, const Tensor& tensor) {
  ++version_;
  Entry& entry = Find(name, SpecOf(tensor));
  entry.Assign(ReadyForKernel(tensor, "parameter \"" + name + "\""));
}

void ParameterStore::Entry::Assign(Tensor given) {
  value = std::move(given);
  pinned.reset();
  on_gpus.clear();
}

const Tensor& ParameterStore::GetPinned(const std::string& name, const cuda::Devices& devices) {
  Entry& entry = entries_.at(name);
  if (!entry.pinned) {
    const Bytes size = entry.spec.size();
    const std::shared_ptr<std::byte> memory = devices.AllocateHost(size);
    cuda::CopyOnHost(memory.get(), DataOf(*entry.value), size);
    entry.pinned = ViewTensor(entry.spec, memory, memory.get());
  }
  return *entry.pinned;
}

std::shared_ptr<std::byte> ParameterStore::GetOnGpu(const std::string& name,
                                                    const cuda::Devices& devices, int device) {
  const std::byte* pinned = DataOf(GetPinned(name, devices));
  Entry& entry = entries_.at(name);
  std::shared_ptr<std::byte>& memory = entry.on_gpus[devices.Gpu(device)];
  if (!memory) memory = devices.AllocateCopy(device, pinned, entry.spec.size());
  return memory;
}

int ParameterStore::Load(const std::string& path) {
  const SafetensorsFile stored = OpenSafetensors(path);
  std::vector<std::string> absent;
  for (const auto& [name, entry] : entries_) {
    auto found = stored.tensors.find(name);
    if (found != stored.tensors.end()) {
      CheckType(entry.spec, found->second.spec, path + ": ");
    } else if (!entry.embedded) {
      absent.push_back(name);
    }
  }
  if (!absent.empty()) {
    TVM_FFI_THROW(ValueError) << path
                              << ": these parameters of the module are not in it: " << Few(absent);
  }
  ++version_;
  int taken = 0;
  for (auto& [name, entry] : entries_) {
    auto found = stored.tensors.find(name);
    if (found == stored.tensors.end()) continue;
    // The pages stay the file's: they are read at first use, and only misaligned ones are copied.
    auto* data = const_cast<std::byte*>(found->second.data);
    entry.Assign(ReadyForKernel(ViewTensor(entry.spec, stored.file, data), name));
    ++taken;
  }
  return taken;
}

std::vector<std::string> ParameterStore::Missing(const Plan& plan) const {
  std::vector<std::string> missing;
  for (const TensorSpec& spec : plan.parameters) {
    if (!entries_.at(spec.name).value) missing.push_back(spec.name);
  }
  return missing;
}

void ParameterStore::Require(const Plan& plan) {
  if (Missing(plan).empty()) return;
  const char* path = std::getenv(kVariable);
  if (path != nullptr && *path != '\0') Load(path);
  const std::vector<std::string> missing = Missing(plan);
  if (missing.empty()) return;
  TVM_FFI_THROW(RuntimeError) << "parameters have no values: " << Few(missing)
                              << ". Call load_parameters(path) with the safetensors file that was "
                                 "written beside the artifact, or set_parameter(name, tensor), or "
                                 "name the file in the environment variable "
                              << kVariable;
}

ParameterStore::Embedded ParameterStore::embedded() const {
  Embedded tensors;
  for (const auto& [name, entry] : entries_) {
    if (entry.embedded) tensors.Set(name, *entry.value);
  }
  return tensors;
}

std::string ParameterStore::Describe() const {
  namespace json = ffi::json;
  json::Array list;
  for (const auto& [name, entry] : entries_) {
    json::Array shape;
    for (std::int64_t extent : entry.spec.shape) shape.push_back(extent);
    json::Object item;
    item.Set(ffi::String("name"), ffi::String(name));
    item.Set(ffi::String("shape"), shape);
    item.Set(ffi::String("dtype"), ffi::String(DtypeName(entry.spec.dtype)));
    item.Set(ffi::String("embedded"), entry.embedded);
    item.Set(ffi::String("loaded"), entry.value.has_value());
    list.push_back(item);
  }
  return json::Stringify(list);
}

}  // namespace tvm_sched::runtime
