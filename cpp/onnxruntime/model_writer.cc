#include "onnxruntime/model_writer.h"

#include <tvm/ffi/error.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

namespace tvm_sched::onnxruntime {

const OrtApi* ort = nullptr;

void Check(OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = ort->GetErrorMessage(status);
  ort->ReleaseStatus(status);
  throw tvm::ffi::Error("RuntimeError", message, "");
}

namespace {

/// A message of Protobuf under construction.
class Message {
 public:
  void Number(int field, std::int64_t value) {
    Varint(static_cast<std::uint64_t>(field) << 3);
    Varint(static_cast<std::uint64_t>(value));
  }
  void Float(int field, float value) {
    Varint(static_cast<std::uint64_t>(field) << 3 | 5);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);  // little-endian
  }
  void Text(int field, std::string_view value) {
    Varint(static_cast<std::uint64_t>(field) << 3 | 2);
    Varint(value.size());
    bytes_.append(value);
  }
  void Nested(int field, const Message& value) { Text(field, value.bytes_); }
  std::string Take() { return std::move(bytes_); }

 private:
  void Varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  std::string bytes_;
};

/// Calls a pair of functions of ONNX Runtime: how many there are, and which.
template <typename Item, typename Owner>
std::vector<Item> Listed(OrtStatus* (*count)(const Owner*, std::size_t*) noexcept,
                         OrtStatus* (*list)(const Owner*, Item*, std::size_t) noexcept,
                         const Owner* owner) {
  std::size_t size = 0;
  Check(count(owner, &size));
  std::vector<Item> items(size);
  if (size > 0) Check(list(owner, items.data(), size));
  return items;
}

template <typename Owner>
std::string TextOf(OrtStatus* (*get)(const Owner*, const char**) noexcept, const Owner* owner) {
  const char* text = nullptr;
  Check(get(owner, &text));
  return text != nullptr ? text : "";
}

Message TensorOf(const std::string& name, const OrtValue* value) {
  const TensorType type = TypeOf(value);
  Message tensor;
  for (const std::int64_t extent : type.shape) tensor.Number(1, extent);
  tensor.Number(2, type.element);
  tensor.Text(8, name);
  if (type.element !=
      ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {  // models with text are refused anyhow
    std::size_t bytes = 0;
    const void* data = nullptr;
    Check(ort->GetTensorSizeInBytes(value, &bytes));
    Check(ort->GetTensorData(value, &data));
    tensor.Text(9, {static_cast<const char*>(data), data != nullptr ? bytes : 0});
  }
  return tensor;
}

/// The ValueInfoProto of a value; without a type if it is no tensor.
Message ValueOf(const OrtValueInfo* value) {
  Message result;
  result.Text(1, NameOf(value));
  const OrtTypeInfo* type = nullptr;
  const OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(ort->GetValueInfoTypeInfo(value, &type));
  if (type != nullptr) Check(ort->CastTypeInfoToTensorInfo(type, &info));
  if (info == nullptr) return result;
  ONNXTensorElementDataType element{};
  Check(ort->GetTensorElementType(info, &element));
  Message tensor, kind;
  tensor.Number(1, element);
  if (ort->TensorTypeAndShape_HasShape(info)) {
    std::size_t rank = 0;
    Check(ort->GetDimensionsCount(info, &rank));
    std::vector<std::int64_t> extents(rank);
    std::vector<const char*> symbols(rank);
    Check(ort->GetDimensions(info, extents.data(), rank));
    Check(ort->GetSymbolicDimensions(info, symbols.data(), rank));
    Message shape;
    for (std::size_t k = 0; k < rank; ++k) {
      Message dimension;
      if (extents[k] >= 0) {
        dimension.Number(1, extents[k]);
      } else if (symbols[k] != nullptr && *symbols[k] != 0) {
        dimension.Text(2, symbols[k]);
      }
      shape.Nested(1, dimension);
    }
    tensor.Nested(2, shape);
  }
  kind.Nested(1, tensor);
  result.Nested(2, kind);
  return result;
}

/// The bytes of an attribute that is no tensor.
std::string Read(const OrtOpAttr* attribute, OrtOpAttrType type) {
  std::size_t size = 0;
  // Without room this fails and says how much is needed.
  if (OrtStatus* status = ort->ReadOpAttr(attribute, type, nullptr, 0, &size)) {
    ort->ReleaseStatus(status);
  }
  std::string bytes(size, '\0');
  if (size > 0) Check(ort->ReadOpAttr(attribute, type, bytes.data(), size, &size));
  return bytes;
}

template <typename Element>
std::vector<Element> Elements(const std::string& bytes) {
  std::vector<Element> elements(bytes.size() / sizeof(Element));
  std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(Element));
  return elements;
}

/// Numbers of AttributeProto's types, and of its fields for them.
Message AttributeOf(const OrtOpAttr* attribute) {
  Message result;
  result.Text(1, TextOf(ort->OpAttr_GetName, attribute));
  OrtOpAttrType type{};
  Check(ort->OpAttr_GetType(attribute, &type));
  switch (type) {
    case ORT_OP_ATTR_FLOAT:
      result.Float(2, Elements<float>(Read(attribute, type)).at(0));
      result.Number(20, 1);
      break;
    case ORT_OP_ATTR_INT:
      result.Number(3, Elements<std::int64_t>(Read(attribute, type)).at(0));
      result.Number(20, 2);
      break;
    case ORT_OP_ATTR_STRING: {
      result.Text(4, Read(attribute, type));
      result.Number(20, 3);
      break;
    }
    case ORT_OP_ATTR_TENSOR: {
      OrtValue* value = nullptr;
      Check(ort->OpAttr_GetTensorAttributeAsOrtValue(attribute, &value));
      result.Nested(5, TensorOf("", value));
      ort->ReleaseValue(value);
      result.Number(20, 4);
      break;
    }
    case ORT_OP_ATTR_FLOATS:
      for (const float value : Elements<float>(Read(attribute, type))) result.Float(7, value);
      result.Number(20, 6);
      break;
    case ORT_OP_ATTR_INTS:
      for (const std::int64_t value : Elements<std::int64_t>(Read(attribute, type))) {
        result.Number(8, value);
      }
      result.Number(20, 7);
      break;
    case ORT_OP_ATTR_STRINGS: {
      const std::string all = Read(attribute, type);  // each ends with a null character
      for (std::size_t begin = 0; begin < all.size();) {
        const std::string one = all.c_str() + begin;
        result.Text(9, one);
        begin += one.size() + 1;
      }
      result.Number(20, 8);
      break;
    }
    default:
      break;  // graphs come from Node_GetSubgraphs
  }
  return result;
}

Message WriteGraph(const OrtGraph* graph);

Message WriteNode(const OrtNode* node) {
  Message result;
  for (const OrtValueInfo* value :
       Listed<const OrtValueInfo*>(ort->Node_GetNumInputs, ort->Node_GetInputs, node)) {
    result.Text(1, value != nullptr ? NameOf(value) : "");
  }
  for (const OrtValueInfo* value :
       Listed<const OrtValueInfo*>(ort->Node_GetNumOutputs, ort->Node_GetOutputs, node)) {
    result.Text(2, value != nullptr ? NameOf(value) : "");
  }
  result.Text(3, TextOf(ort->Node_GetName, node));
  result.Text(4, TextOf(ort->Node_GetOperatorType, node));
  for (const OrtOpAttr* attribute :
       Listed<const OrtOpAttr*>(ort->Node_GetNumAttributes, ort->Node_GetAttributes, node)) {
    OrtOpAttrType type{};
    Check(ort->OpAttr_GetType(attribute, &type));
    // One of no known type keeps its name alone, which the importer refuses.
    if (type != ORT_OP_ATTR_GRAPH) result.Nested(5, AttributeOf(attribute));
  }
  std::size_t count = 0;
  Check(ort->Node_GetNumSubgraphs(node, &count));
  std::vector<const OrtGraph*> graphs(count);
  std::vector<const char*> names(count);
  if (count > 0) Check(ort->Node_GetSubgraphs(node, graphs.data(), count, names.data()));
  for (std::size_t k = 0; k < count; ++k) {
    Message attribute;
    attribute.Text(1, names[k]);
    attribute.Nested(6, WriteGraph(graphs[k]));
    attribute.Number(20, 5);
    result.Nested(5, attribute);
  }
  result.Text(7, TextOf(ort->Node_GetDomain, node));
  return result;
}

Message WriteGraph(const OrtGraph* graph) {
  Message result;
  for (const OrtNode* node : NodesOf(graph)) {
    result.Nested(1, WriteNode(node));
    for (const OrtValueInfo* value :
         Listed<const OrtValueInfo*>(ort->Node_GetNumOutputs, ort->Node_GetOutputs, node)) {
      if (value != nullptr) result.Nested(13, ValueOf(value));
    }
  }
  result.Text(2, "graph");
  for (const OrtValueInfo* value : Listed<const OrtValueInfo*>(ort->Graph_GetNumInitializers,
                                                               ort->Graph_GetInitializers, graph)) {
    bool is_default = false;  // of an input: a run may bring another value
    Check(ort->ValueInfo_IsOptionalGraphInput(value, &is_default));
    if (is_default) continue;
    const OrtValue* tensor = nullptr;
    Check(ort->ValueInfo_GetInitializerValue(value, &tensor));
    if (tensor != nullptr) result.Nested(5, TensorOf(NameOf(value), tensor));
  }
  for (const OrtValueInfo* value : InputsOf(graph)) result.Nested(11, ValueOf(value));
  for (const OrtValueInfo* value : OutputsOf(graph)) result.Nested(12, ValueOf(value));
  return result;
}

}  // namespace

TensorType TypeOf(const OrtValue* tensor) {
  OrtTensorTypeAndShapeInfo* found = nullptr;
  Check(ort->GetTensorTypeAndShape(tensor, &found));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> info(
      found, [](OrtTensorTypeAndShapeInfo* each) { ort->ReleaseTensorTypeAndShapeInfo(each); });
  TensorType type;
  std::size_t rank = 0;
  Check(ort->GetTensorElementType(info.get(), &type.element));
  Check(ort->GetDimensionsCount(info.get(), &rank));
  type.shape.resize(rank);
  Check(ort->GetDimensions(info.get(), type.shape.data(), rank));
  return type;
}

std::string NameOf(const OrtValueInfo* value) { return TextOf(ort->GetValueInfoName, value); }

std::vector<const OrtNode*> NodesOf(const OrtGraph* graph) {
  return Listed<const OrtNode*>(ort->Graph_GetNumNodes, ort->Graph_GetNodes, graph);
}

std::vector<const OrtValueInfo*> InputsOf(const OrtGraph* graph) {
  return Listed<const OrtValueInfo*>(ort->Graph_GetNumInputs, ort->Graph_GetInputs, graph);
}

std::vector<const OrtValueInfo*> OutputsOf(const OrtGraph* graph) {
  return Listed<const OrtValueInfo*>(ort->Graph_GetNumOutputs, ort->Graph_GetOutputs, graph);
}

std::string WriteModel(const OrtGraph* graph) {
  Message model;
  std::int64_t version = 0;
  Check(ort->Graph_GetOnnxIRVersion(graph, &version));
  model.Number(1, version);
  std::size_t count = 0;
  Check(ort->Graph_GetNumOperatorSets(graph, &count));
  std::vector<const char*> domains(count);
  std::vector<std::int64_t> versions(count);
  Check(ort->Graph_GetOperatorSets(graph, domains.data(), versions.data(), count));
  for (std::size_t k = 0; k < count; ++k) {
    Message set;
    set.Text(1, domains[k]);
    set.Number(2, versions[k]);
    model.Nested(8, set);
  }
  model.Nested(7, WriteGraph(graph));
  return model.Take();
}

}  // namespace tvm_sched::onnxruntime
