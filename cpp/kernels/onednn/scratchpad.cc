#include "kernels/onednn/scratchpad.h"

#include <memory>
#include <new>

namespace tvm_sched::onednn {

namespace {

constexpr std::align_val_t kAlignment{64};

struct Release {
  void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
};

}  // namespace

void* Scratchpad(std::size_t size) {
  thread_local std::unique_ptr<std::byte, Release> memory;
  thread_local std::size_t capacity = 0;
  if (size > capacity) {
    memory.reset();
    memory.reset(static_cast<std::byte*>(::operator new(size, kAlignment)));
    capacity = size;
  }
  return memory.get();
}

}  // namespace tvm_sched::onednn
