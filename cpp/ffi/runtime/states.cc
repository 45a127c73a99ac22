#include "ffi/runtime/states.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <utility>

#include "ffi/runtime/tensors.h"
#include "runtime/throw.h"

namespace tvm_sched::runtime {

using tvm::ffi::Tensor;

namespace {

/// Memory of the host as one of the pair that an entry has.
std::shared_ptr<std::byte> HostMemory(const TensorSpec& spec) {
  const Tensor tensor = AllocateTensor(spec);
  return {DataOf(tensor), [tensor](std::byte*) {}};
}

}  // namespace

StateStore::StateStore(const std::vector<std::shared_ptr<const Plan>>& plans) {
  for (const auto& plan : plans) {
    for (const State& state : plan->states) {
      entries_[state.spec.name].spec = state.spec;
      entries_[state.spec.name].in_place = state.in_place;
    }
  }
  for (auto& [name, entry] : entries_) {
    entry.current = HostMemory(entry.spec);
    std::fill_n(entry.current.get(), entry.spec.size().count, std::byte{0});
  }
}

void StateStore::Place(const Plan& plan, const std::shared_ptr<const cuda::Devices>& devices) {
  const auto gpu_of = [&devices](const State& state) {
    return devices ? devices->Gpu(state.device) : cuda::kHostMemory;
  };
  // What moves goes to the host first: there may be no room for its old and new memory, nor for two
  // states that change places. Where a GPU has none at all, the values stay there.
  for (const State& state : plan.states) {
    Entry& entry = entries_.at(state.spec.name);
    const bool stays = entry.devices == devices && entry.gpu == gpu_of(state);
    if (entry.devices && !stays) PutOnHost(&entry, OnHost(entry));
  }
  for (const State& state : plan.states) {
    Entry& entry = entries_.at(state.spec.name);
    const int gpu = gpu_of(state);
    const Bytes size = entry.spec.size();
    if (entry.devices != devices) {
      const Memory pinned = devices->AllocateHost(size);
      cuda::CopyOnHost(pinned.get(), entry.current.get(), size);
      Memory current = devices->AllocateCopy(state.device, pinned.get(), size);
      Memory next = entry.in_place ? current : devices->AllocateOnGpu(gpu, size);
      entry = {entry.spec, devices, gpu, std::move(current), std::move(next), entry.in_place};
    } else if (entry.in_place) {
      entry.next = entry.current;
    } else if (!entry.next) {
      entry.next = devices ? devices->AllocateOnGpu(gpu, size) : HostMemory(entry.spec);
    }
  }
}

std::byte* StateStore::At(const Plan& plan, const Source& source) const {
  const Entry& entry = entries_.at(plan.states[source.index].spec.name);
  return source.kind == SourceKind::kState ? entry.current.get() : entry.next.get();
}

void StateStore::Advance(const Plan& plan) {
  for (const State& state : plan.states) {
    Entry& entry = entries_.at(state.spec.name);
    std::swap(entry.current, entry.next);
  }
}

void StateStore::Withdraw() {
  for (auto& [name, entry] : entries_) {
    if (entry.devices) PutOnHost(&entry, OnHost(entry));
  }
}

StateStore::Entry& StateStore::Find(const std::string& name) {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::string known;
  for (const auto& [other, entry] : entries_)
    known += (known.empty() ? "\"" : ", \"") + other + "\"";
  TVM_SCHED_THROW(ValueError) << "there is no state \"" << name << "\"; this module has "
                              << (known.empty() ? "none: compile the model with states" : known);
}

Tensor StateStore::OnHost(const Entry& entry) {
  const Tensor tensor = AllocateTensor(entry.spec);
  const Bytes size = entry.spec.size();
  if (size.count == 0) return tensor;
  if (!entry.devices) {
    std::copy_n(entry.current.get(), size.count, DataOf(tensor));
    return tensor;
  }
  const cuda::ContextGuard guard;
  const std::shared_ptr<std::byte> pinned = entry.devices->AllocateHost(size);
  entry.devices->CopyAndWait(entry.gpu, pinned.get(), entry.current.get(), size);
  cuda::CopyOnHost(DataOf(tensor), pinned.get(), size);
  return tensor;
}

void StateStore::PutOnHost(Entry* entry, const Tensor& value) {
  entry->next.reset();
  entry->current = HostMemory(entry->spec);
  std::copy_n(DataOf(value), entry->spec.size().count, entry->current.get());
  entry->devices.reset();
  entry->gpu = cuda::kHostMemory;
}

void StateStore::Set(const std::string& name, const Tensor& value) {
  Entry& entry = Find(name);
  const TensorSpec found = SpecOf(value);
  if (!entry.spec.SameType(found)) {
    TVM_SCHED_THROW(ValueError) << "state \"" << name << "\" is " << found.ToString()
                                << ", expected " << entry.spec.ToString();
  }
  PutOnHost(&entry, ReadyForKernel(value, "state \"" + name + "\""));
}

Tensor StateStore::Get(const std::string& name) { return OnHost(Find(name)); }

}  // namespace tvm_sched::runtime
