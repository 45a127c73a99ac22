// Triton's backend `tvm_sched`: runs artifacts within the server's process. `tvm-sched
// export-triton` puts this library into the model's folder, with a configuration that names the
// folders of the runtime's libraries. Those are opened by their path, so that the library itself
// needs tvm_ffi alone, which lies beside it.
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "triton/triton_api.h"

namespace tvm_sched::triton {
namespace {

namespace ffi = tvm::ffi;
namespace fs = std::filesystem;
using Shape = std::vector<std::int64_t>;

constexpr const char* kArtifact = "artifact.so";

[[noreturn]] void Fail(const std::string& message) {
  throw ffi::Error("RuntimeError", message, "");
}

/// Throws what a function of Triton's returned.
void Check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  const std::string message = TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  Fail(message);
}

TRITONSERVER_Error* ErrorOf(const std::string& message, bool of_request) {
  return TRITONSERVER_ErrorNew(
      of_request ? TRITONSERVER_ERROR_INVALID_ARG : TRITONSERVER_ERROR_INTERNAL, message.c_str());
}

/// Calls a function; returns its exception as Triton's error.
template <typename Function>
TRITONSERVER_Error* Guarded(const Function& function) {
  try {
    function();
    return nullptr;
  } catch (const ffi::Error& error) {
    return ErrorOf(error.message(), false);
  } catch (const std::exception& error) {
    return ErrorOf(error.what(), false);
  }
}

std::string Text(const Shape& shape) {
  std::ostringstream text;
  text << '[';
  for (std::size_t k = 0; k < shape.size(); ++k) text << (k > 0 ? ", " : "") << shape[k];
  text << ']';
  return text.str();
}

std::int64_t Count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::uint64_t Now() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

struct HostMemory {
  void AllocData(DLTensor* tensor) {
    const std::size_t size = (ffi::GetDataSize(*tensor) + 63) / 64 * 64;
    tensor->data = std::aligned_alloc(64, size > 0 ? size : 64);
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

/// An input or output of a plan.
struct TensorSpec {
  std::string name;
  DLDataType dtype;
  Shape shape;

  [[nodiscard]] std::size_t Bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count) * ((dtype.bits * dtype.lanes + 7) / 8);
  }
};

TRITONSERVER_DataType TypeOf(DLDataType dtype) {
  static const std::map<std::pair<int, int>, TRITONSERVER_DataType> known = {
      {{kDLBool, 8}, TRITONSERVER_TYPE_BOOL},    {{kDLUInt, 8}, TRITONSERVER_TYPE_UINT8},
      {{kDLUInt, 16}, TRITONSERVER_TYPE_UINT16}, {{kDLUInt, 32}, TRITONSERVER_TYPE_UINT32},
      {{kDLUInt, 64}, TRITONSERVER_TYPE_UINT64}, {{kDLInt, 8}, TRITONSERVER_TYPE_INT8},
      {{kDLInt, 16}, TRITONSERVER_TYPE_INT16},   {{kDLInt, 32}, TRITONSERVER_TYPE_INT32},
      {{kDLInt, 64}, TRITONSERVER_TYPE_INT64},   {{kDLFloat, 16}, TRITONSERVER_TYPE_FP16},
      {{kDLFloat, 32}, TRITONSERVER_TYPE_FP32},  {{kDLFloat, 64}, TRITONSERVER_TYPE_FP64},
      {{kDLBfloat, 16}, TRITONSERVER_TYPE_BF16}};
  const auto found = known.find({dtype.code, dtype.bits});
  if (found == known.end() || dtype.lanes != 1)
    Fail("the artifact has a data type that Triton lacks");
  return found->second;
}

TensorSpec SpecOf(const ffi::json::Object& object) {
  TensorSpec spec{std::string(object["name"].cast<ffi::String>()),
                  ffi::StringToDLDataType(object["dtype"].cast<ffi::String>()),
                  {}};
  for (const ffi::Any& extent : object["shape"].cast<ffi::json::Array>()) {
    spec.shape.push_back(extent.cast<std::int64_t>());
  }
  return spec;
}

std::vector<TensorSpec> SpecsOf(const ffi::json::Array& list) {
  std::vector<TensorSpec> specs;
  for (const ffi::Any& each : list) specs.push_back(SpecOf(each.cast<ffi::json::Object>()));
  return specs;
}

std::optional<ffi::Module> FindScheduled(const ffi::Module& module) {
  if (std::string(module->kind()) == "tvm_sched") return module;
  for (const ffi::Any& import : module->imports()) {
    if (auto found = FindScheduled(import.cast<ffi::Module>())) return found;
  }
  return std::nullopt;
}

/// Opens a library of the runtime in the first of some folders that has it; it stays open.
void Open(const std::string& name, const std::vector<fs::path>& folders, bool needed, int scope) {
  std::string tried;
  for (const fs::path& folder : folders) {
    const fs::path file = folder / name;
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored)) continue;
    if (dlopen(file.c_str(), RTLD_NOW | scope) != nullptr) return;
    tried += std::string("; ") + dlerror();
  }
  if (needed)
    Fail(name +
         " was not found or cannot be loaded; config.pbtxt names its folder in the parameter "
         "`libraries`" +
         tried);
}

/// The value of a text parameter in a configuration; "" without one.
std::string Parameter(const ffi::json::Object& configuration, const char* name) {
  const auto all = configuration.Get(ffi::String("parameters"));
  if (!all.has_value()) return "";
  const auto one = all->cast<ffi::json::Object>().Get(ffi::String(name));
  if (!one.has_value()) return "";
  return std::string(one->cast<ffi::json::Object>()["string_value"].cast<ffi::String>());
}

/// A request's inputs in the model's order, or why it is refused.
struct Given {
  TRITONBACKEND_Request* request;
  std::vector<ffi::Tensor> inputs;
  std::int64_t rows = 0;  // if requests are joined
  std::string refused;
};

/// A version of a model in memory.
class Model {
 public:
  explicit Model(TRITONBACKEND_Model* model) {
    const ffi::json::Object configuration = Configuration(model);
    std::vector<fs::path> folders;
    std::stringstream named(Parameter(configuration, "libraries"));
    for (std::string folder; std::getline(named, folder, ':');) folders.emplace_back(folder);
    Open("libtvm_sched.so", folders, true, RTLD_LOCAL);
    // TVM's kernels call its runtime, and it reads the executables that artifacts hold.
    Open("libtvm_runtime.so", folders, true, RTLD_GLOBAL);
    Open("libtvm_runtime_extra.so", folders, false, RTLD_GLOBAL);
    ffi::Function::GetGlobalRequired("tvm_sched.take_parallel_loops")();
    Load(FolderOf(model), configuration);
  }

  /// Runs requests, as one batch if they may be joined, and answers each. A refused request fails
  /// alone.
  void Execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
               std::uint32_t count) {
    const std::uint64_t begin = Now();
    std::vector<Given> good;
    for (std::uint32_t k = 0; k < count; ++k) {
      Given given{requests[k], {}, 0, ""};
      try {
        Read(&given);
      } catch (const ffi::Error& error) {
        given.refused = error.message();
      }
      if (given.refused.empty()) {
        good.push_back(std::move(given));
      } else {
        Answer(instance, requests[k], ErrorOf(given.refused, true), {}, 0, 0,
               {begin, begin, begin});
      }
    }
    if (joins_) {
      // Triton joins no more rows than the configuration allows, which are the largest batch of the
      // artifact.
      for (std::size_t first = 0; first < good.size();) {
        std::size_t end = first;
        std::int64_t rows = 0;
        while (end < good.size() &&
               (end == first || (Fits(good[first], good[end]) &&
                                 (plan_of_ || rows + good[end].rows <= sizes_.back())))) {
          rows += good[end++].rows;
        }
        RunJoined(instance, &good[first], end - first, rows, begin);
        first = end;
      }
    } else {
      for (const Given& given : good) Run(instance, &given, 1, given.inputs, begin);
    }
  }

 private:
  struct Times {
    std::uint64_t begin, compute_begin, compute_end;
  };

  static ffi::json::Object Configuration(TRITONBACKEND_Model* model) {
    TRITONSERVER_Message* message = nullptr;
    Check(TRITONBACKEND_ModelConfig(model, 1, &message));
    const char* base = nullptr;
    std::size_t size = 0;
    Check(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
    const auto parsed = ffi::json::Parse(ffi::String(base, size)).cast<ffi::json::Object>();
    Check(TRITONSERVER_MessageDelete(message));
    return parsed;
  }

  static fs::path FolderOf(TRITONBACKEND_Model* model) {
    TRITONBACKEND_ArtifactType type{};
    const char* location = nullptr;
    std::uint64_t version = 0;
    Check(TRITONBACKEND_ModelRepository(model, &type, &location));
    Check(TRITONBACKEND_ModelVersion(model, &version));
    return fs::path(location) / std::to_string(version);
  }

  void Load(const fs::path& folder, const ffi::json::Object& configuration) {
    const fs::path file = fs::absolute(folder / kArtifact);
    library_ = ffi::Module::LoadFromFile(file.string());
    const auto scheduled = FindScheduled(*library_);
    if (!scheduled) Fail(file.string() + ": no module of kind tvm_sched is in it");
    const ffi::Module& module = *scheduled;
    main_ = Function(module, "main");
    if (const std::string threads = Parameter(configuration, "threads"); !threads.empty()) {
      Function(module, "set_threads")(std::stoll(threads));
    }
    fs::path parameters = file;
    parameters.replace_extension(".safetensors");
    if (fs::is_regular_file(parameters)) {
      Function(module, "load_parameters")(ffi::String(parameters.string()));
    }
    std::int64_t instances = 0;
    for (const ffi::Any& group : configuration["instance_group"].cast<ffi::json::Array>()) {
      instances += group.cast<ffi::json::Object>()["count"].cast<std::int64_t>();
    }
    Function(module, "configure")(ffi::String(
        "{\"instances\": " + std::to_string(std::max<std::int64_t>(instances, 1)) + "}"));
    const ffi::Any metadata = Function(module, "info")();
    const auto about = ffi::json::Parse(metadata.cast<ffi::String>()).cast<ffi::json::Object>();
    ReadPlans(module, about);
    if (auto most = configuration.Get(ffi::String("max_batch_size")); most.has_value()) {
      joins_ = most->cast<std::int64_t>() > 0;
    }
    const auto differences = ffi::Function::GetGlobalRequired("tvm_sched.machine_differences");
    for (const ffi::String& told : differences(metadata).cast<ffi::Array<ffi::String>>()) {
      Check(TRITONSERVER_LogMessage(TRITONSERVER_LOG_WARN, __FILE__, __LINE__, told.c_str()));
    }
  }

  static ffi::Function Function(const ffi::Module& module, const char* name) {
    auto found = module->GetFunction(name);
    if (!found.has_value()) Fail(std::string("the artifact has no function ") + name);
    return found.value();
  }

  /// Notes the inputs' types and the shapes that there are plans for, and what `main`'s results
  /// are.
  void ReadPlans(const ffi::Module& module, const ffi::json::Object& about) {
    const ffi::Any plans = ffi::json::Parse(Function(module, "plans")().cast<ffi::String>());
    ffi::json::Array list;
    if (auto several = plans.as<ffi::json::Array>()) {
      list = *several;
    } else {
      list.push_back(plans);
    }
    for (const ffi::Any& each : list) {
      const auto plan = each.cast<ffi::json::Object>();
      if (plan.Get(ffi::String("symbols")).has_value()) {
        plan_of_ = Function(module, "plan_of");
        continue;
      }
      std::vector<TensorSpec> arguments = SpecsOf(plan["arguments"].cast<ffi::json::Array>());
      std::vector<Shape> shapes;
      for (const TensorSpec& argument : arguments) shapes.push_back(argument.shape);
      if (!shapes.empty() && !shapes[0].empty()) sizes_.push_back(shapes[0][0]);
      shapes_.push_back(std::move(shapes));
      if (inputs_.empty()) inputs_ = std::move(arguments);
    }
    std::sort(sizes_.begin(), sizes_.end());
    for (const ffi::Any& name : about["output_names"].cast<ffi::json::Array>()) {
      names_.emplace_back(name.cast<ffi::String>());
    }
    const auto first = about["plans"].cast<ffi::json::Array>()[0].cast<ffi::json::Object>();
    for (const ffi::Any& each : first["results"].cast<ffi::json::Array>()) {
      const auto place = each.cast<ffi::json::Object>();
      const auto output = place.Get(ffi::String("output"));
      const auto argument = place.Get(ffi::String("argument"));
      results_.push_back(
          {output.has_value(), (output.has_value() ? output : argument)->cast<std::int64_t>()});
    }
  }

  /// Copies a request's inputs into aligned memory.
  void Read(Given* given) const {
    std::vector<Shape> shapes;
    for (const TensorSpec& spec : inputs_) {
      TRITONBACKEND_Input* input = nullptr;
      Check(TRITONBACKEND_RequestInput(given->request, spec.name.c_str(), &input));
      const std::int64_t* dims = nullptr;
      std::uint32_t rank = 0, buffers = 0;
      std::uint64_t bytes = 0;
      TRITONSERVER_DataType type{};
      Check(TRITONBACKEND_InputProperties(input, nullptr, &type, &dims, &rank, &bytes, &buffers));
      Shape shape(dims, dims + rank);
      if (spec.shape.empty() && Count(shape) == 1)
        shape.clear();  // Triton has no tensors without dimensions
      if (type != TypeOf(spec.dtype) || shape.size() != spec.shape.size() ||
          bytes != spec.Bytes(Count(shape))) {
        Fail("input '" + spec.name + "' has another type or shape than the model's");
      }
      ffi::Tensor tensor =
          ffi::Tensor::FromNDAlloc(HostMemory(), ffi::ShapeView(shape.data(), shape.size()),
                                   spec.dtype, DLDevice{kDLCPU, 0});
      auto* target = static_cast<std::uint8_t*>(tensor.data_ptr());
      for (std::uint32_t k = 0; k < buffers; ++k) {
        const void* buffer = nullptr;
        std::uint64_t size = 0;
        TRITONSERVER_MemoryType where = TRITONSERVER_MEMORY_CPU;
        std::int64_t id = 0;
        Check(TRITONBACKEND_InputBuffer(input, k, &buffer, &size, &where, &id));
        if (where != TRITONSERVER_MEMORY_CPU && where != TRITONSERVER_MEMORY_CPU_PINNED) {
          Fail("input '" + spec.name + "' is in the memory of a GPU; the CPU's is needed");
        }
        std::memcpy(target, buffer, size);
        target += size;
      }
      if (spec.dtype.code ==
          kDLBool) {  // a byte that is neither 0 nor 1 is no value that kernels know
        auto* flags = static_cast<std::uint8_t*>(tensor.data_ptr());
        std::transform(flags, flags + bytes, flags,
                       [](std::uint8_t flag) { return flag != 0 ? 1 : 0; });
      }
      given->inputs.push_back(tensor);
      shapes.push_back(std::move(shape));
    }
    if (joins_) {
      for (const Shape& shape : shapes) {
        if (shape[0] != shapes[0][0])
          Fail("the inputs have different numbers of rows; all need the same number");
      }
      given->rows = shapes[0][0];
      if (!plan_of_ && (given->rows < 1 || given->rows > sizes_.back())) {
        Fail("the inputs have " + std::to_string(given->rows) + " rows; from 1 to " +
             std::to_string(sizes_.back()) + " are allowed");
      }
    } else if (!plan_of_ && std::find(shapes_.begin(), shapes_.end(), shapes) == shapes_.end()) {
      std::string asked, known;
      for (const Shape& shape : shapes) asked += Text(shape);
      for (const auto& plan : shapes_) {
        known += known.empty() ? "" : "; or ";
        for (const Shape& shape : plan) known += Text(shape);
      }
      Fail("no plan of the model takes the shapes " + asked + "; allowed are " + known);
    }
    if (plan_of_) Called(*plan_of_, given->inputs);  // it refuses sizes that are not admissible
  }

  /// Whether rows of both requests may stand in one batch.
  static bool Fits(const Given& one, const Given& other) {
    for (std::size_t i = 0; i < one.inputs.size(); ++i) {
      const ffi::ShapeView a = one.inputs[i].shape(), b = other.inputs[i].shape();
      if (!std::equal(a.begin() + 1, a.end(), b.begin() + 1)) return false;
    }
    return true;
  }

  /// Puts requests' rows into one batch, of the next size that there is; what remains of it is
  /// zero.
  void RunJoined(TRITONBACKEND_ModelInstance* instance, const Given* given, std::size_t count,
                 std::int64_t rows, std::uint64_t begin) {
    const std::int64_t size =
        plan_of_ ? rows : *std::lower_bound(sizes_.begin(), sizes_.end(), rows);
    if (count == 1 && size == rows) return Run(instance, given, count, given->inputs, begin);
    std::vector<ffi::Tensor> joined;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const ffi::ShapeView one = given[0].inputs[i].shape();
      Shape shape(one.begin(), one.end());
      shape[0] = size;
      ffi::Tensor batch =
          ffi::Tensor::FromNDAlloc(HostMemory(), ffi::ShapeView(shape.data(), shape.size()),
                                   inputs_[i].dtype, DLDevice{kDLCPU, 0});
      auto* target = static_cast<char*>(batch.data_ptr());
      const std::size_t row = inputs_[i].Bytes(Count(shape) / std::max<std::int64_t>(size, 1));
      for (std::size_t k = 0; k < count; ++k) {
        const std::size_t bytes = row * static_cast<std::size_t>(given[k].rows);
        std::memcpy(target, given[k].inputs[i].data_ptr(), bytes);
        target += bytes;
      }
      std::memset(target, 0, row * static_cast<std::size_t>(size - rows));
      joined.push_back(batch);
    }
    Run(instance, given, count, joined, begin);
  }

  void Run(TRITONBACKEND_ModelInstance* instance, const Given* given, std::size_t count,
           const std::vector<ffi::Tensor>& inputs, std::uint64_t begin) {
    Times times{begin, Now(), 0};
    std::vector<ffi::Tensor> outputs;
    std::string failure;
    try {
      outputs = Call(inputs);
    } catch (const ffi::Error& error) {
      failure = "the run failed: " + error.message();
    }
    times.compute_end = Now();
    std::int64_t first = 0, rows = 0;
    for (std::size_t k = 0; k < count; ++k) {
      TRITONSERVER_Error* error = failure.empty() ? nullptr : ErrorOf(failure, false);
      Answer(instance, given[k].request, error, outputs, first, given[k].rows, times);
      first += given[k].rows;
      rows += given[k].rows;
    }
    if (failure.empty()) {
      Check(TRITONBACKEND_ModelInstanceReportBatchStatistics(
          instance, static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1)), times.begin,
          times.compute_begin, times.compute_end, Now()));
    }
  }

  static ffi::Any Called(const ffi::Function& function, const std::vector<ffi::Tensor>& inputs) {
    std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    ffi::Any result;
    function.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
    return result;
  }

  [[nodiscard]] std::vector<ffi::Tensor> Call(const std::vector<ffi::Tensor>& inputs) const {
    const ffi::Any result = Called(main_, inputs);
    std::vector<ffi::Tensor> made;
    if (auto one = result.as<ffi::Tensor>()) {
      made.push_back(*one);
    } else {
      for (const ffi::Tensor& tensor : result.cast<ffi::Array<ffi::Tensor>>())
        made.push_back(tensor);
    }
    std::vector<ffi::Tensor> outputs;
    for (const auto& [is_output, place] : results_) {
      outputs.push_back((is_output ? made : inputs).at(static_cast<std::size_t>(place)));
    }
    return outputs;
  }

  /// Sends the outputs that a request asks for, or an error, and gives the request back.
  void Answer(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request,
              TRITONSERVER_Error* error, const std::vector<ffi::Tensor>& outputs,
              std::int64_t first, std::int64_t rows, const Times& times) const {
    TRITONBACKEND_Response* response = nullptr;
    Check(TRITONBACKEND_ResponseNew(&response, request));
    if (error == nullptr) {
      error = Guarded([&] { Write(response, request, outputs, first, rows); });
    }
    const bool success = error == nullptr;
    Check(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    if (error != nullptr) TRITONSERVER_ErrorDelete(error);
    Check(TRITONBACKEND_ModelInstanceReportStatistics(
        instance, request, success, times.begin, times.compute_begin, times.compute_end, Now()));
    Check(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  }

  void Write(TRITONBACKEND_Response* response, TRITONBACKEND_Request* request,
             const std::vector<ffi::Tensor>& outputs, std::int64_t first, std::int64_t rows) const {
    std::uint32_t count = 0;
    Check(TRITONBACKEND_RequestOutputCount(request, &count));
    for (std::uint32_t k = 0; k < count; ++k) {
      const char* name = nullptr;
      Check(TRITONBACKEND_RequestOutputName(request, k, &name));
      const auto place = std::find(names_.begin(), names_.end(), name);
      if (place == names_.end()) Fail(std::string("there is no output '") + name + "'");
      const ffi::Tensor& value = outputs[static_cast<std::size_t>(place - names_.begin())];
      Shape shape(value.shape().begin(), value.shape().end());
      std::size_t offset = 0;
      std::size_t bytes = ffi::GetDataSize(static_cast<std::size_t>(value.numel()), value.dtype());
      if (joins_) {
        const std::size_t row =
            bytes / static_cast<std::size_t>(std::max<std::int64_t>(shape[0], 1));
        shape[0] = rows;
        offset = row * static_cast<std::size_t>(first);
        bytes = row * static_cast<std::size_t>(rows);
      }
      if (shape.empty()) shape.push_back(1);
      TRITONBACKEND_Output* output = nullptr;
      Check(TRITONBACKEND_ResponseOutput(response, &output, name, TypeOf(value.dtype()),
                                         shape.data(), static_cast<std::uint32_t>(shape.size())));
      void* buffer = nullptr;
      TRITONSERVER_MemoryType where = TRITONSERVER_MEMORY_CPU;
      std::int64_t id = 0;
      Check(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &where, &id));
      if (where != TRITONSERVER_MEMORY_CPU && where != TRITONSERVER_MEMORY_CPU_PINNED) {
        Fail("Triton gives memory of a GPU for an output");
      }
      std::memcpy(buffer, static_cast<const char*>(value.data_ptr()) + offset, bytes);
    }
  }

  std::optional<ffi::Module> library_;
  ffi::Function main_;
  std::optional<ffi::Function> plan_of_;  // of an artifact that takes any admissible size
  std::vector<TensorSpec> inputs_;        // shapes are those of the first plan
  std::vector<std::vector<Shape>> shapes_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::string> names_;
  std::vector<std::pair<bool, std::int64_t>>
      results_;  // an output of `main`, else an argument; and which
  bool joins_ = false;
};

}  // namespace
}  // namespace tvm_sched::triton

using tvm_sched::triton::Guarded;
using tvm_sched::triton::Model;

#define TVM_SCHED_TRITON extern "C" __attribute__((visibility("default"))) TRITONSERVER_Error*

TVM_SCHED_TRITON TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return Guarded([&] {
    auto made = std::make_unique<Model>(model);
    tvm_sched::triton::Check(TRITONBACKEND_ModelSetState(model, made.release()));
  });
}

TVM_SCHED_TRITON TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  TRITONSERVER_Error* error = TRITONBACKEND_ModelState(model, &state);
  if (error == nullptr) delete static_cast<Model*>(state);
  return error;
}

TVM_SCHED_TRITON TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                    TRITONBACKEND_Request** requests,
                                                    const std::uint32_t count) {
  TRITONBACKEND_Model* model = nullptr;
  void* state = nullptr;
  if (auto* error = TRITONBACKEND_ModelInstanceModel(instance, &model)) return error;
  if (auto* error = TRITONBACKEND_ModelState(model, &state)) return error;
  return Guarded([&] { static_cast<Model*>(state)->Execute(instance, requests, count); });
}
