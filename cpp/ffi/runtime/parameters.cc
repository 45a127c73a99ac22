#include "ffi/runtime/parameters.h"

#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "ffi/runtime/tensors.h"
#include "runtime/safetensors.h"
#include "runtime/stages.h"
#include "runtime/throw.h"

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
  TVM_SCHED_THROW(ValueError) << where << "parameter \"" << wanted.name << "\" is "
                              << found.ToString() << ", expected " << wanted.ToString();
}

/// The parameters that a plan's steps read, in their order.
std::vector<std::string> ReadBySteps(const Plan& plan) {
  std::vector<std::string> names;
  for (const Step& step : plan.steps) {
    for (int buffer : step.inputs) {
      const Source& source = plan.buffers[buffer].source;
      if (source.kind != SourceKind::kParameter) continue;
      names.push_back(plan.parameters[source.index].name);
    }
  }
  return names;
}

}  // namespace

ParameterStore::ParameterStore(const std::vector<std::shared_ptr<const Plan>>& plans,
                               const Embedded& embedded) {
  for (const auto& plan : plans) {
    for (const TensorSpec& spec : plan->parameters) entries_[spec.name].spec = spec;
  }
  std::set<std::string> in_file;
  for (const auto& plan : plans) {
    queue_depth_ = std::max(queue_depth_, plan->queue_depth);
    for (const Step& step : plan->steps) {
      if (step.kind != StepKind::kRead) continue;
      const std::string& name = plan->parameters[plan->buffers[step.inputs[0]].source.index].name;
      if (in_file.insert(name).second) read_.push_back(name);
    }
  }
  std::set<std::string> known;
  for (const auto& plan : plans) {
    if (plan->backend != BackendKind::kCuda) continue;
    for (std::string& name : ReadBySteps(*plan)) {
      if (known.insert(name).second) needed_.push_back(std::move(name));
    }
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
    TVM_SCHED_THROW(ValueError) << "there is no parameter \"" << name << "\"; this module has "
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

void ParameterStore::Entry::Assign(Tensor given, std::shared_ptr<const MappedFile> in) {
  Forget();
  value = std::move(given);
  file = std::move(in);
  path.clear();
}

void ParameterStore::Entry::Forget() {
  value.reset();
  file.reset();
  reading.reset();
  pinned.reset();
  on_gpus.clear();
}

Bytes ParameterStore::Unload() {
  Bytes released{0};
  for (auto& [name, entry] : entries_) {
    if (entry.path.empty() || !entry.value) continue;
    released.count += entry.spec.size().count;
    entry.Forget();
  }
  if (released.count > 0) ++version_;
  return released;
}

void ParameterStore::Reload() {
  std::set<std::string> paths;
  for (const auto& [name, entry] : entries_) {
    if (!entry.path.empty() && !entry.value) paths.insert(entry.path);
  }
  for (const std::string& path : paths) LoadInto(path, /*asleep=*/true);
}

std::vector<ParameterStore::Entry*> ParameterStore::Needed() {
  std::vector<Entry*> entries;
  for (const std::string& name : needed_) {
    Entry& entry = entries_.at(name);
    if (entry.value) entries.push_back(&entry);
  }
  return entries;
}

void ParameterStore::Read() {
  std::vector<Entry*> entries = Needed();
  std::erase_if(entries, [](const Entry* entry) {
    return entry->pinned != nullptr && entry->pinned->OfThisProcess();
  });
  if (!entries.empty()) ReadInto(entries);
}

void ParameterStore::ReadInto(const std::vector<Entry*>& entries) {
  if (!pinning_) pinning_ = cuda::Pinning::FromEnvironment();
  std::vector<cuda::PinnedSource> sources;
  for (const Entry* entry : entries) {
    sources.push_back({DataOf(*entry->value), entry->spec.size(),
                       std::make_shared<Tensor>(*entry->value), entry->file});
  }
  auto memory = std::make_shared<cuda::PinnedParameters>(std::move(sources), *pinning_);
  for (std::size_t k = 0; k < entries.size(); ++k) {
    entries[k]->pinned = memory;
    entries[k]->source = static_cast<int>(k);
  }
}

void ParameterStore::Pin(const cuda::Devices& devices) {
  using Way = cuda::Pinning::Way;
  Read();
  const std::vector<Entry*> entries = Needed();
  for (const Entry* first : entries) {
    while (true) {
      const std::shared_ptr<cuda::PinnedParameters> memory = first->pinned;
      if (memory->Pin(devices)) break;
      std::vector<Entry*> same;
      for (Entry* entry : entries) {
        if (entry->pinned == memory) same.push_back(entry);
      }
      // The next way of the three; the driver's own memory takes no registration.
      pinning_->way = pinning_->way == Way::kMap ? Way::kSlab : Way::kAllocate;
      ReadInto(same);
    }
  }
}

void ParameterStore::PinOthers() {
  for (const Entry* entry : Needed()) {
    if (entry->pinned) entry->pinned->PinOthers();
  }
}

cuda::PinnedParameter ParameterStore::GetPinned(const std::string& name) const {
  const Entry& entry = entries_.at(name);
  return {entry.pinned, entry.pinned->At(entry.source), entry.spec.size()};
}

std::shared_ptr<std::byte> ParameterStore::GetOnGpu(const std::string& name,
                                                    const cuda::Devices& devices, int device) {
  Entry& entry = entries_.at(name);
  const int gpu = devices.Gpu(device);
  std::shared_ptr<std::byte>& memory = entry.on_gpus[gpu];
  if (memory) return memory;
  const cuda::PinnedParameter from = GetPinned(name);
  const std::shared_ptr<std::byte> made = devices.Allocate(device, from.size);
  from.memory->Await(from.data, from.size);
  from.memory->ForEachPart(from.data, from.size, [&](std::int64_t offset, std::int64_t count) {
    devices.CopyAndWait(gpu, made.get() + offset, from.data + offset, {count});
  });
  return memory = made;
}

void ParameterStore::ReadAheadIn(const std::shared_ptr<const MappedFile>& file) {
  std::vector<Entry*> entries;
  std::vector<ReadAhead::Part> parts;
  for (const std::string& name : read_) {
    Entry& entry = entries_.at(name);
    if (entry.file != file) continue;
    entries.push_back(&entry);
    parts.push_back({DataOf(*entry.value), entry.spec.size()});
  }
  if (entries.empty()) return;
  const auto reading = std::make_shared<ReadAhead>(file, std::move(parts), queue_depth_);
  for (std::size_t k = 0; k < entries.size(); ++k) {
    entries[k]->reading = reading;
    entries[k]->part = k;
  }
}

std::function<void()> ParameterStore::Reading(const std::string& name) const {
  const Entry& entry = entries_.at(name);
  if (!entry.reading) return [] {};
  return [reading = entry.reading, part = entry.part] { reading->Await(part); };
}

int ParameterStore::Load(const std::string& path) { return LoadInto(path, /*asleep=*/false); }

int ParameterStore::LoadInto(const std::string& path, bool asleep) {
  const auto wanted = [&](const Entry& entry) {
    return !asleep || (entry.path == path && !entry.value);
  };
  const StageTimer timer("open parameters");
  const SafetensorsFile stored = OpenSafetensors(path);
  std::vector<std::string> absent;
  for (const auto& [name, entry] : entries_) {
    if (!wanted(entry)) continue;
    auto found = stored.tensors.find(name);
    if (found != stored.tensors.end()) {
      CheckType(entry.spec, found->second.spec, path + ": ");
    } else if (asleep || !entry.embedded) {
      absent.push_back(name);
    }
  }
  if (!absent.empty()) {
    TVM_SCHED_THROW(ValueError) << path << ": these parameters of the module are not in it: "
                                << Few(absent);
  }
  ++version_;
  int taken = 0;
  for (auto& [name, entry] : entries_) {
    auto found = stored.tensors.find(name);
    if (found == stored.tensors.end() || !wanted(entry)) continue;
    // The pages stay the file's: they are read at first use, and only misaligned ones are copied.
    auto* data = const_cast<std::byte*>(found->second.data);
    const Tensor mapped = ViewTensor(entry.spec, stored.file, data);
    Tensor ready = ReadyForKernel(mapped, name);
    const bool stays = ready.data_ptr() == mapped.data_ptr();
    entry.Assign(std::move(ready), stays ? stored.file : nullptr);
    entry.path = path;
    ++taken;
  }
  ReadAheadIn(stored.file);
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
  TVM_SCHED_THROW(RuntimeError)
      << "parameters have no values: " << Few(missing)
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
