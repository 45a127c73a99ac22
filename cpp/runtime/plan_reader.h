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

/// Keeps a product of extents, and of the bits of an element, far from the end of 64 bits.
inline constexpr std::int64_t kLargestTensor = std::int64_t{1} << 50;

/// Read the shape and dtype (and name, where there is one) of a tensor; of a template, extents may
/// be expressions, which are added to `open`.
TensorSpec ReadTensorSpec(const JsonCursor& cursor, TemplateSizes* open = nullptr);

/// Read a data type's name.
DLDataType ReadDtype(const JsonCursor& cursor);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_PLAN_READER_H_
