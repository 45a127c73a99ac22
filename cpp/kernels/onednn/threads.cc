#include "kernels/onednn/threads.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>

namespace tvm_sched::onednn {

namespace {

int Cores() {
  if (const char* text = std::getenv("TVM_SCHED_NUM_THREADS")) {
    const int count = std::atoi(text);
    if (count > 0) return count;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

constexpr std::align_val_t kAlignment{64};

struct Release {
  void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
};

}  // namespace

void UseThreads(int devices) {
  // OpenMP keeps the number for each thread that opens parallel regions, which suits devices well.
  thread_local int current = 0;
  static const int cores = Cores();
  const int wanted = std::max(cores / devices, 1);
  if (wanted == current) return;
  omp_set_num_threads(wanted);
  current = wanted;
}

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
