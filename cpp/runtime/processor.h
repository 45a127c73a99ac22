// Instruction sets that compiled kernels need, and those of this processor.
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

/// A processor that kernels were compiled for, and what their names end in where an artifact holds
/// kernels for several.
struct Level {
  std::string name;
  std::string suffix;
};

/// The level whose kernels run here: the last of the artifact's that this processor has, or the one
/// that the environment variable TVM_SCHED_PROCESSOR names; without a suffix where the artifact has
/// one level alone. Throws std::invalid_argument where that variable names what the artifact does
/// not hold, or what cannot run here.
Level ChooseLevel(const JsonCursor& metadata);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_PROCESSOR_H_
