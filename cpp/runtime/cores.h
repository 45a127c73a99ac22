// How many cores this process may use, and the part of them that belongs to a kernel.
#ifndef TVM_SCHED_RUNTIME_CORES_H_
#define TVM_SCHED_RUNTIME_CORES_H_

#include "runtime/json_cursor.h"

namespace tvm_sched::runtime {

/// The cores to use, by the first of these that is set: `wanted` if it is above 0, the environment
/// variable TVM_SCHED_NUM_THREADS where it is a number above 0, `compiled` (what an artifact was
/// compiled for) if it is above 0, the cores that the system lets this process run on.
int Cores(int wanted = 0, int compiled = 0);

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
