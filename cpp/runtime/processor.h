// What compiled kernels need of the processor, and what this one has.
#ifndef TVM_SCHED_RUNTIME_PROCESSOR_H_
#define TVM_SCHED_RUNTIME_PROCESSOR_H_

#include <string>
#include <vector>

#include "runtime/json_cursor.h"

namespace tvm_sched::runtime {

/// Instruction sets, by LLVM's names, that code for this architecture may use and that are asked
/// for; and those of them that this processor and its system have.
std::vector<std::string> KnownFeatures();
std::vector<std::string> OwnFeatures();

/// Why the kernels of an artifact with this metadata cannot run here, with what to do; empty where
/// they can. They would end the process with SIGILL.
std::string WhyNotHere(const JsonCursor& metadata);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_PROCESSOR_H_
