// Whether an implementation of oneDNN computes a kernel right on this processor. None is used
// before its values were compared with plain ones: oneDNN 3.2 adds the bias of some transposed
// convolutions several times.
#ifndef TVM_SCHED_KERNELS_ONEDNN_VALUE_CHECK_H_
#define TVM_SCHED_KERNELS_ONEDNN_VALUE_CHECK_H_

#include <string>
#include <vector>

#include "kernels/onednn/description.h"
#include "kernels/onednn/kernel.h"

namespace tvm_sched::onednn {

/// Whether the values of an implementation are right, for a kernel of this many threads, which the
/// caller has entered. The kernel runs once on random numbers; part of its result, or all of a
/// small one, is compared with `PlainValues`.
///
/// What was found is remembered by oneDNN's version, processor, instruction sets, threads, kernel
/// and implementation: in the process and, unless TVM_SCHED_NO_CACHE is set, in the file
/// `onednn_values.txt` of the cache. For tests, an implementation whose name holds the text of the
/// environment variable TVM_SCHED_DISTORT counts as one that computes a wrong value. Writes the
/// name of the check into `prepared`.
bool IsRight(const Description& description, int threads, Prepared* prepared);

/// Take checks, by the names that `IsRight` wrote into `Prepared::check`, as passed: another
/// process did them. Names of another machine's checks are no other than those that are asked for
/// here.
void TrustChecks(const std::vector<std::string>& names);

/// A sentence for each implementation that was found wrong on this machine.
std::vector<std::string> FoundWrong();

/// How many implementations this process ran to check them.
int CountChecks();

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_VALUE_CHECK_H_
