#include "kernels/onednn/threads.h"

#include <omp.h>

#include <algorithm>
#include <memory>
#include <new>

#include "runtime/cores.h"

namespace tvm_sched::onednn {

namespace {

int CountThreads(const Share& cores) {
  static const int all = runtime::Cores();
  return std::max(all * cores.part / cores.whole, 1);
}

constexpr std::align_val_t kAlignment{64};

struct Release {
  void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
};

}  // namespace

void UseThreads(const Share& cores) {
  // OpenMP keeps the number for each thread that opens parallel regions.
  const int wanted = CountThreads(cores);
  if (wanted != omp_get_max_threads()) omp_set_num_threads(wanted);
}

BorrowedThread::BorrowedThread(const Share& cores) : former_(omp_get_max_threads()) {
  UseThreads(cores);
}

BorrowedThread::~BorrowedThread() { omp_set_num_threads(former_); }

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
