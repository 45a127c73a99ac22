#include "kernels/onednn/packed.h"

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace tvm_sched::onednn {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{1} << 21;

}  // namespace

dnnl::memory Allocate(const dnnl::memory::desc& layout, const dnnl::engine& engine,
                      std::shared_ptr<void>* owner) {
  const std::size_t size = layout.get_size();
  const std::align_val_t alignment{size >= kHugePage ? kHugePage : kAlignment};
  owner->reset(::operator new(size, alignment),
               [alignment](void* memory) { ::operator delete(memory, alignment); });
  // Whole pages only, for the rest may be another's; a system without them goes on with small ones.
  if (size >= kHugePage) madvise(owner->get(), size / kHugePage * kHugePage, MADV_HUGEPAGE);
  return dnnl::memory(layout, engine, owner->get());
}

std::shared_ptr<const Packed> PackedParameters::Find(const void* source,
                                                     const dnnl::memory::desc& given,
                                                     const dnnl::memory::desc& layout,
                                                     std::uint64_t generation) {
  const std::lock_guard lock(mutex_);
  auto [entry, end] = copies_.equal_range(source);
  while (entry != end) {
    const std::shared_ptr<const Packed> held = entry->second.lock();
    if (!held) {
      entry = copies_.erase(entry);
      continue;
    }
    if (held->generation == generation && held->given == given &&
        held->memory.get_desc() == layout) {
      return held;
    }
    ++entry;
  }
  return nullptr;
}

void PackedParameters::Add(const void* source, const std::shared_ptr<const Packed>& packed) {
  const std::lock_guard lock(mutex_);
  copies_.emplace(source, packed);
}

}  // namespace tvm_sched::onednn
