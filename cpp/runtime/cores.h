// How many cores this process may use.
#ifndef TVM_SCHED_RUNTIME_CORES_H_
#define TVM_SCHED_RUNTIME_CORES_H_

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace tvm_sched::runtime {

/// What the environment variable TVM_SCHED_NUM_THREADS says, where it is a number above 0; else the
/// cores that the system lets this process run on.
inline int Cores() {
  if (const char* text = std::getenv("TVM_SCHED_NUM_THREADS")) {
    const int count = std::atoi(text);
    if (count > 0) return count;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_CORES_H_
