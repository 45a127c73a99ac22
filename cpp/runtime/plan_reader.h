// Reads plans from JSON and checks every rule of docs/formats/plan.md.
#ifndef TVM_SCHED_RUNTIME_PLAN_READER_H_
#define TVM_SCHED_RUNTIME_PLAN_READER_H_

#include <string>
#include <vector>

#include "runtime/json_cursor.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// Read one plan or a list of plans. Throws FormatError, which names the place in the document.
std::vector<Plan> ReadPlans(const std::string& json);

/// Read the shape and dtype (and name, where there is one) of a tensor.
TensorSpec ReadTensorSpec(const JsonCursor& cursor);

/// Read a data type's name.
DLDataType ReadDtype(const JsonCursor& cursor);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_PLAN_READER_H_
