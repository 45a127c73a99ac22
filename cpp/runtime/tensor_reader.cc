// Shapes and data types, as plans write them.
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include "runtime/plan_reader.h"
#include "runtime/plan_template.h"

namespace tvm_sched::runtime {

namespace {

std::vector<std::int64_t> ReadShape(const JsonCursor& cursor, TemplateSizes* open) {
  std::vector<std::int64_t> shape;
  std::int64_t elements = 1;
  for (const JsonCursor& item : cursor.Items()) {
    if (open != nullptr && !item.value().as<std::int64_t>()) {
      shape.push_back(-1 - open->Add(item));
      continue;
    }
    const std::int64_t extent = item.Int(0, kLargestTensor);
    if (extent != 0 && elements > kLargestTensor / extent) {
      cursor.Fail("the tensor has more than 2^50 elements");
    }
    elements *= extent;
    shape.push_back(extent);
  }
  return shape;
}

/// Whether tensors can have elements of a type: numbers of the widths that there are, no vectors.
bool IsStorable(DLDataType dtype) {
  if (dtype.lanes != 1 || dtype.bits == 0 || dtype.bits > 128) return false;
  switch (dtype.code) {
    case kDLInt:
    case kDLUInt:
      return (dtype.bits & (dtype.bits - 1)) == 0 && dtype.bits <= 64;
    case kDLFloat:
      return dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
    case kDLBfloat:
      return dtype.bits == 16;
    case kDLOpaqueHandle:
      return false;
    default:  // bool, complex numbers and the floats below 16 bits, whose names fix their widths
      return true;
  }
}

}  // namespace

DLDataType ReadDtype(const JsonCursor& cursor) {
  const std::string name = cursor.String();
  try {
    const DLDataType dtype = tvm::ffi::StringToDLDataType(name);
    // The parser takes "float0" and "float" for float32: only the names that we write are allowed.
    if (IsStorable(dtype) && DtypeName(dtype) == name) return dtype;
  } catch (const tvm::ffi::Error&) {
    // Falls through to the message with the place in the document.
  }
  cursor.Unexpected("a data type such as \"float32\", \"int64\", \"bool\", \"bfloat16\"");
}

TensorSpec ReadTensorSpec(const JsonCursor& cursor, TemplateSizes* open) {
  TensorSpec spec;
  if (auto name = cursor.OptionalField("name"); name) spec.name = name->String();
  spec.shape = ReadShape(cursor.Field("shape"), open);
  spec.dtype = ReadDtype(cursor.Field("dtype"));
  return spec;
}

}  // namespace tvm_sched::runtime
