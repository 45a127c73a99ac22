// Runs a program: later segments, branches and loops that data decide.
#ifndef TVM_SCHED_FFI_RUNTIME_RUN_PROGRAM_H_
#define TVM_SCHED_FFI_RUNTIME_RUN_PROGRAM_H_

#include <tvm/ffi/container/tensor.h>

#include <functional>
#include <vector>

#include "ffi/runtime/instance.h"
#include "runtime/program.h"

namespace tvm_sched::runtime {

/// Runs a plan, by its position, with these arguments; returns its outputs.
using PlanRunner =
    std::function<std::vector<tvm::ffi::Tensor>(int plan, std::vector<tvm::ffi::Tensor>)>;

/// `values` are the arguments of the call and the outputs of its first plan; the others are added.
/// Open to Ctrl-C between the iterations of a loop. Throws ffi::Error.
void RunProgram(const Program& program, const PlanList& plans,
                std::vector<tvm::ffi::Tensor>* values, const PlanRunner& run);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_RUN_PROGRAM_H_
