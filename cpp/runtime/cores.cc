#include "runtime/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

namespace tvm_sched::runtime {

namespace {

constexpr int kMostThreads = 1 << 16;

}  // namespace

int Cores(int wanted, int compiled) {
  if (wanted > 0) return std::min(wanted, kMostThreads);
  if (const char* text = std::getenv("TVM_SCHED_NUM_THREADS")) {
    const int count = std::atoi(text);
    if (count > 0) return std::min(count, kMostThreads);
  }
  if (compiled > 0) return compiled;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

Share ReadShare(const JsonCursor& field) {
  const std::vector<JsonCursor> numbers = field.Items();
  if (numbers.size() != 2) field.Unexpected("two integers: a part, and of how many");
  const auto whole = static_cast<int>(numbers[1].Int(1, kMostThreads));
  return {static_cast<int>(numbers[0].Int(1, whole)), whole};
}

int ReadThreads(const JsonCursor& field) { return static_cast<int>(field.Int(1, kMostThreads)); }

}  // namespace tvm_sched::runtime
