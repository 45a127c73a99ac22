#pragma once

// Writes a graph of ONNX Runtime as an ONNX model, in Protobuf's wire format.
#include <onnxruntime_c_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tvm_sched::onnxruntime {

/// The interface of the ONNX Runtime that loaded the library.
extern const OrtApi* ort;

/// Throws what a function of ONNX Runtime returned.
void Check(OrtStatus* status);

struct TensorType {
  ONNXTensorElementDataType element{};
  std::vector<std::int64_t> shape;
};
TensorType TypeOf(const OrtValue* tensor);

std::string NameOf(const OrtValueInfo* value);
std::vector<const OrtNode*> NodesOf(const OrtGraph* graph);
std::vector<const OrtValueInfo*> InputsOf(const OrtGraph* graph);
std::vector<const OrtValueInfo*> OutputsOf(const OrtGraph* graph);

/// Returns a serialised ModelProto with the nodes in the order of `NodesOf`, the types of all
/// values that ONNX Runtime knows, and the initializers' values.
std::string WriteModel(const OrtGraph* graph);

}  // namespace tvm_sched::onnxruntime
