// The cores and the memory that this process may use, and the part of the cores that belongs to a
// kernel.
#ifndef TVM_SCHED_RUNTIME_CORES_H_
#define TVM_SCHED_RUNTIME_CORES_H_

#include <cstdint>
#include <string>

#include "runtime/json_cursor.h"

namespace tvm_sched::runtime {

/// The cores to use, by the first of these that is set: `wanted` if it is above 0, the environment
/// variable TVM_SCHED_NUM_THREADS where it is a number above 0, `compiled` (what an artifact was
/// compiled for) if it is above 0, `AllowedCores`.
int Cores(int wanted = 0, int compiled = 0);

/// Limits of a container: the least ones of this process's control groups and all groups above
/// them.
struct ContainerLimits {
  int cores = 0;            // the CPU quota, rounded down, at least 1; 0: no limit
  std::int64_t memory = 0;  // bytes; 0: no limit
};

/// Reads the limits from `root`/proc/self/cgroup and `root`/sys/fs/cgroup, of both versions of
/// control groups. What cannot be read sets no limit.
ContainerLimits ReadContainerLimits(const std::string& root = "");

/// The cores that the system lets this process run on, but no more than the CPU quota of its
/// container, which is read once.
int AllowedCores();

/// `part` of each `whole`.
struct Share {
  int part = 1;
  int whole = 1;

  /// At least one.
  int Of(int cores) const {
    const int share = cores * part / whole;
    return share > 1 ? share : 1;
  }
};

/// Two integers: a part, and of how many. Throws FormatError.
Share ReadShare(const JsonCursor& field);

/// A number of threads. Throws FormatError.
int ReadThreads(const JsonCursor& field);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_CORES_H_
