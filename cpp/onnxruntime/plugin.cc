// The execution provider that ONNX Runtime loads as a plugin. `tvm_sched_onnxruntime` (Python)
// decides which nodes it takes and compiles them; runs go from here to the executor, without
// Python.
#include <onnxruntime_c_api.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "onnxruntime/model_writer.h"

namespace tvm_sched::onnxruntime {
namespace {

namespace ffi = tvm::ffi;

constexpr const char* kName = "TvmSchedExecutionProvider";
/// The oldest interface that has all functions called here; newer runtimes have it, too.
constexpr std::uint32_t kApiVersion = 24;
const OrtEpApi* ort_ep = nullptr;

/// Calls a function; returns its exception as a status. Not as ORT_EP_FAIL, after which Python's
/// sessions print the error and run with other providers.
template <typename Function>
OrtStatus* Guarded(const Function& function) noexcept {
  try {
    function();
    return nullptr;
  } catch (const ffi::Error& error) {
    return ort->CreateStatus(ORT_FAIL, error.message().c_str());
  } catch (const std::exception& error) {
    return ort->CreateStatus(ORT_FAIL, error.what());
  }
}

/// Nodes that became an artifact.
struct Part {
  ffi::Function run;
  std::vector<std::string> inputs, outputs;
};

std::vector<std::string> Texts(const ffi::Any& list) {
  std::vector<std::string> texts;
  for (const ffi::String& text : list.cast<ffi::Array<ffi::String>>()) texts.emplace_back(text);
  return texts;
}

DLDataType DLTypeOf(ONNXTensorElementDataType type) {
  static const std::map<ONNXTensorElementDataType, DLDataType> known = {
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {kDLFloat, 32, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, {kDLFloat, 64, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, {kDLFloat, 16, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, {kDLBfloat, 16, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, {kDLBool, 8, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, {kDLInt, 8, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, {kDLInt, 16, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, {kDLInt, 32, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, {kDLInt, 64, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, {kDLUInt, 8, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, {kDLUInt, 16, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, {kDLUInt, 32, 1}},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, {kDLUInt, 64, 1}}};
  const auto found = known.find(type);
  if (found == known.end()) {
    throw ffi::Error("TypeError", "a tensor has a data type that artifacts do not take", "");
  }
  return found->second;
}

/// Memory of ONNX Runtime as a tensor of ours; it must outlive the tensor.
ffi::Tensor View(const OrtValue* value) {
  struct Borrowed {
    DLManagedTensorVersioned tensor{};
    std::vector<std::int64_t> shape, strides;
  };
  auto borrowed = std::make_unique<Borrowed>();
  TensorType type = TypeOf(value);
  const std::size_t rank = type.shape.size();
  borrowed->shape = std::move(type.shape);
  borrowed->strides.assign(rank, 1);
  for (std::size_t k = rank; k-- > 1;) {
    borrowed->strides[k - 1] = borrowed->strides[k] * borrowed->shape[k];
  }
  const void* data = nullptr;
  Check(ort->GetTensorData(value, &data));
  DLManagedTensorVersioned& tensor = borrowed->tensor;
  tensor.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  tensor.manager_ctx = borrowed.get();
  tensor.deleter = [](DLManagedTensorVersioned* self) {
    delete static_cast<Borrowed*>(self->manager_ctx);
  };
  tensor.dl_tensor = {const_cast<void*>(data),
                      {kDLCPU, 0},
                      static_cast<std::int32_t>(rank),
                      DLTypeOf(type.element),
                      borrowed->shape.data(),
                      borrowed->strides.data(),
                      0};
  return ffi::Tensor::FromDLPackVersioned(&borrowed.release()->tensor);
}

/// Runs an artifact in place of a fused node.
class Computation : public OrtNodeComputeInfo {
 public:
  Computation(const Part& part, const std::vector<std::string>& inputs,
              const std::vector<std::string>& outputs)
      : OrtNodeComputeInfo{kApiVersion, CreateState, Compute, ReleaseState}, run_(part.run) {
    for (const std::string& name : part.inputs) inputs_.push_back(Place(inputs, name));
    for (const std::string& name : outputs) results_.push_back(Place(part.outputs, name));
  }

 private:
  static std::size_t Place(const std::vector<std::string>& names, const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      throw ffi::Error("RuntimeError", "ONNX Runtime and the artifact differ in '" + name + "'",
                       "");
    }
    return static_cast<std::size_t>(found - names.begin());
  }

  static OrtStatus* ORT_API_CALL CreateState(OrtNodeComputeInfo* self, OrtNodeComputeContext*,
                                             void** state) noexcept {
    *state = self;
    return nullptr;
  }
  static void ORT_API_CALL ReleaseState(OrtNodeComputeInfo*, void*) noexcept {}
  static OrtStatus* ORT_API_CALL Compute(OrtNodeComputeInfo* self, void*,
                                         OrtKernelContext* context) noexcept {
    return Guarded([&] { static_cast<const Computation*>(self)->Run(context); });
  }

  void Run(OrtKernelContext* context) const {
    std::vector<ffi::Tensor> tensors;
    for (const std::size_t place : inputs_) {
      const OrtValue* value = nullptr;
      Check(ort->KernelContext_GetInput(context, place, &value));
      tensors.push_back(View(value));
    }
    std::vector<ffi::AnyView> arguments(tensors.begin(), tensors.end());
    ffi::Any result;
    run_.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
    std::vector<ffi::Tensor> made;
    if (auto one = result.as<ffi::Tensor>()) {
      made.push_back(*one);
    } else {
      for (const ffi::Tensor& tensor : result.cast<ffi::Array<ffi::Tensor>>()) {
        made.push_back(tensor);
      }
    }
    for (std::size_t k = 0; k < results_.size(); ++k) {
      const ffi::Tensor& tensor = made.at(results_[k]);
      OrtValue* output = nullptr;
      Check(ort->KernelContext_GetOutput(context, k, tensor.shape().data(), tensor.shape().size(),
                                         &output));
      void* target = nullptr;
      Check(ort->GetTensorMutableData(output, &target));
      const DLDataType wanted = DLTypeOf(TypeOf(output).element), own = tensor.dtype();
      if (wanted.code != own.code || wanted.bits != own.bits) {
        throw ffi::Error("TypeError",
                         "an output has another data type in the session's model than in the "
                         "artifact: compile this model",
                         "");
      }
      const std::size_t bytes =
          ffi::GetDataSize(static_cast<std::size_t>(tensor.numel()), tensor.dtype());
      if (bytes > 0) std::memcpy(target, tensor.data_ptr(), bytes);
    }
  }

  ffi::Function run_;
  std::vector<std::size_t> inputs_;   // places of the artifact's inputs among the node's
  std::vector<std::size_t> results_;  // places of the node's outputs among the artifact's
};

/// The provider of one session.
class Provider : public OrtEp {
 public:
  explicit Provider(const OrtSessionOptions* session) : OrtEp{} {
    ort_version_supported = kApiVersion;
    GetName = [](const OrtEp*) noexcept { return kName; };
    GetCapability = [](OrtEp* self, const OrtGraph* graph,
                       OrtEpGraphSupportInfo* support) noexcept {
      return Guarded([&] { static_cast<Provider*>(self)->ClaimOrFail(graph, support); });
    };
    Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode**, std::size_t count,
                 OrtNodeComputeInfo** computations, OrtNode**) noexcept {
      return Guarded([&] {
        for (std::size_t k = 0; k < count; ++k) {
          computations[k] = static_cast<Provider*>(self)->ComputationOf(graphs[k]).release();
        }
      });
    };
    ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** all, std::size_t count) noexcept {
      for (std::size_t k = 0; k < count; ++k) delete static_cast<Computation*>(all[k]);
    };
    ReadOptions(session);
  }

 private:
  /// Notes the options of this provider, which stand among those of the session.
  void ReadOptions(const OrtSessionOptions* session) {
    std::string prefix = std::string("ep.") + kName + '.';
    std::transform(prefix.begin(), prefix.end(), prefix.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    OrtKeyValuePairs* pairs = nullptr;
    Check(ort->GetSessionOptionsConfigEntries(session, &pairs));
    const char* const* keys = nullptr;
    const char* const* values = nullptr;
    std::size_t count = 0;
    ort->GetKeyValuePairs(pairs, &keys, &values, &count);
    for (std::size_t k = 0; k < count; ++k) {
      const std::string key = keys[k];
      if (key.rfind(prefix, 0) == 0)
        options_.Set(key.substr(prefix.size()), ffi::String(values[k]));
    }
    ort->ReleaseKeyValuePairs(pairs);
  }

  /// Claims; an error is kept for `Compile`, since ONNX Runtime only logs those of GetCapability
  /// and goes on without the provider.
  void ClaimOrFail(const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
    try {
      Claim(graph, support);
    } catch (const std::exception& error) {
      const auto* own = dynamic_cast<const ffi::Error*>(&error);
      failure_ = own != nullptr ? std::string(own->message()) : error.what();
      const std::vector<const OrtNode*> nodes = NodesOf(graph);
      Check(
          ort_ep->EpGraphSupportInfo_AddNodesToFuse(support, nodes.data(), nodes.size(), nullptr));
    }
  }

  /// Has the nodes of a graph compiled that can be, and tells ONNX Runtime which.
  void Claim(const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
    const OrtNode* parent = nullptr;
    Check(ort->Graph_GetParentNode(graph, &parent));
    if (parent != nullptr) return;  // a branch or a loop's body belongs to its node
    const std::vector<const OrtNode*> nodes = NodesOf(graph);
    if (nodes.empty()) return;
    const auto claim = ffi::Function::GetGlobalRequired("tvm_sched.onnxruntime.claim");
    const std::string model = WriteModel(graph);
    const auto claimed =
        claim(ffi::Bytes(model), options_).cast<ffi::Array<ffi::Array<ffi::Any>>>();
    for (const ffi::Array<ffi::Any>& each : claimed) {
      std::vector<const OrtNode*> taken;
      for (const std::int64_t place : each[0].cast<ffi::Array<std::int64_t>>()) {
        taken.push_back(nodes.at(static_cast<std::size_t>(place)));
      }
      OrtNodeFusionOptions fusion{};
      fusion.ort_version_supported = kApiVersion;
      fusion.drop_constant_initializers = true;  // the artifact has them
      Check(
          ort_ep->EpGraphSupportInfo_AddNodesToFuse(support, taken.data(), taken.size(), &fusion));
      parts_.push_back({each[1].cast<ffi::Function>(), Texts(each[2]), Texts(each[3])});
    }
  }

  /// Returns what runs in place of the graph of a fused node.
  std::unique_ptr<Computation> ComputationOf(const OrtGraph* graph) {
    if (!failure_.empty()) throw ffi::Error("RuntimeError", failure_, "");
    std::vector<std::string> inputs, outputs;
    for (const OrtValueInfo* value : InputsOf(graph)) inputs.push_back(NameOf(value));
    for (const OrtValueInfo* value : OutputsOf(graph)) outputs.push_back(NameOf(value));
    for (const Part& part : parts_) {
      if (std::find(part.outputs.begin(), part.outputs.end(), outputs.at(0)) !=
          part.outputs.end()) {
        return std::make_unique<Computation>(part, inputs, outputs);
      }
    }
    throw ffi::Error("RuntimeError", "no artifact computes '" + outputs.at(0) + "'", "");
  }

  ffi::Map<ffi::String, ffi::String> options_;
  std::vector<Part> parts_;
  std::string failure_;
};

class Factory : public OrtEpFactory {
 public:
  Factory() : OrtEpFactory{} {
    ort_version_supported = kApiVersion;
    GetName = [](const OrtEpFactory*) noexcept { return kName; };
    GetVendor = [](const OrtEpFactory*) noexcept { return "tvm_sched"; };
    GetVendorId = [](const OrtEpFactory*) noexcept -> std::uint32_t { return 0; };
    GetVersion = [](const OrtEpFactory*) noexcept { return TVM_SCHED_VERSION; };
    GetSupportedDevices = [](OrtEpFactory* self, const OrtHardwareDevice* const* devices,
                             std::size_t count, OrtEpDevice** supported, std::size_t most,
                             std::size_t* found) noexcept {
      return Guarded([&] {
        *found = 0;
        for (std::size_t k = 0; k < count && *found < most; ++k) {
          // Inputs and outputs are in host memory, on whichever devices the artifact runs.
          if (ort->HardwareDevice_Type(devices[k]) != OrtHardwareDeviceType_CPU) continue;
          Check(ort_ep->CreateEpDevice(self, devices[k], nullptr, nullptr, &supported[*found]));
          ++*found;
        }
      });
    };
    CreateEp = [](OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*,
                  std::size_t, const OrtSessionOptions* session, const OrtLogger*,
                  OrtEp** provider) noexcept {
      return Guarded([&] { *provider = new Provider(session); });
    };
    ReleaseEp = [](OrtEpFactory*, OrtEp* provider) noexcept {
      delete static_cast<Provider*>(provider);
    };
    CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*,
                         OrtAllocator** allocator) noexcept -> OrtStatus* {
      *allocator = nullptr;
      return nullptr;
    };
    ReleaseAllocator = [](OrtEpFactory*, OrtAllocator*) noexcept {};
    CreateDataTransfer = [](OrtEpFactory*, OrtDataTransferImpl** transfer) noexcept -> OrtStatus* {
      *transfer = nullptr;
      return nullptr;
    };
    IsStreamAware = [](const OrtEpFactory*) noexcept { return false; };
  }
};

}  // namespace
}  // namespace tvm_sched::onnxruntime

#define TVM_SCHED_ONNXRUNTIME extern "C" __attribute__((visibility("default"))) OrtStatus*

TVM_SCHED_ONNXRUNTIME CreateEpFactories(const char*, const OrtApiBase* base, const OrtLogger*,
                                        OrtEpFactory** factories, std::size_t most,
                                        std::size_t* count) noexcept {
  using namespace tvm_sched::onnxruntime;
  ort = base->GetApi(kApiVersion);
  if (ort == nullptr) {  // without its interface there is no way to return an error but this
    *count = 0;
    return base->GetApi(1)->CreateStatus(ORT_NOT_IMPLEMENTED,
                                         "tvm_sched needs ONNX Runtime 1.24 or later");
  }
  ort_ep = ort->GetEpApi();
  return Guarded([&] {
    if (!ffi::Function::GetGlobal("tvm_sched.onnxruntime.claim").has_value()) {
      throw ffi::Error("RuntimeError",
                       "import the Python package tvm_sched_onnxruntime before its library is "
                       "registered: it compiles",
                       "");
    }
    if (most < 1) throw ffi::Error("RuntimeError", "there is no room for a factory", "");
    factories[0] = new Factory();
    *count = 1;
  });
}

TVM_SCHED_ONNXRUNTIME ReleaseEpFactory(OrtEpFactory* factory) noexcept {
  delete static_cast<tvm_sched::onnxruntime::Factory*>(factory);
  return nullptr;
}
