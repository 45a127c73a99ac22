// Reads a problem from the arrays that Python makes of it.
#ifndef TVM_SCHED_FFI_PROBLEM_ARRAYS_H_
#define TVM_SCHED_FFI_PROBLEM_ARRAYS_H_

#include "ffi/arrays.h"
#include "simulate/problem.h"

namespace tvm_sched {

/// The problem of the arrays that `_arrays` in the Python module of `NativeProblem` makes,
/// by name.
simulate::Problem ProblemOf(const NamedValues::Values& arrays);

}  // namespace tvm_sched

#endif  // TVM_SCHED_FFI_PROBLEM_ARRAYS_H_
