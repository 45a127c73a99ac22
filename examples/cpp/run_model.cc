// Loads what `tvm-sched compile` wrote and runs it, without Python.
//
//   ./run_model model.so [model.safetensors]
//
// docs/deployment.md says how it is compiled. Nothing of the libraries but tvm_ffi is called by
// name: they register themselves, hence --no-as-needed there.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

struct HostMemory {
  void AllocData(DLTensor* tensor) {
    const std::size_t size = (ffi::GetDataSize(*tensor) + 63) / 64 * 64;
    tensor->data = std::aligned_alloc(64, size > 0 ? size : 64);
    std::memset(tensor->data, 0, size);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

/// The module of kind "tvm_sched" in an artifact: the executor.
std::optional<ffi::Module> FindScheduled(const ffi::Module& module) {
  if (std::string(module->kind()) == "tvm_sched") return module;
  for (const ffi::Any& import : module->imports()) {
    if (auto found = FindScheduled(import.cast<ffi::Module>())) return found;
  }
  return std::nullopt;
}

/// What the artifact computes: a plan for each set of input shapes that it was compiled for.
ffi::json::Array Plans(const ffi::Module& scheduled) {
  const auto text = scheduled->GetFunction("plans").value()().cast<ffi::String>();
  const ffi::Any plans = ffi::json::Parse(text);
  if (auto list = plans.as<ffi::json::Array>()) return *list;
  return {plans};
}

/// A tensor for each input of a plan; where it is float32, all ones.
std::vector<ffi::Tensor> MakeInputs(const ffi::json::Object& plan) {
  std::vector<ffi::Tensor> inputs;
  for (const ffi::Any& item : plan["arguments"].cast<ffi::json::Array>()) {
    const auto spec = item.cast<ffi::json::Object>();
    std::vector<std::int64_t> shape;
    for (const ffi::Any& extent : spec["shape"].cast<ffi::json::Array>()) {
      shape.push_back(extent.cast<std::int64_t>());
    }
    const DLDataType dtype = ffi::StringToDLDataType(spec["dtype"].cast<ffi::String>());
    ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(
        HostMemory(), ffi::ShapeView(shape.data(), shape.size()), dtype, DLDevice{kDLCPU, 0});
    if (dtype.code == kDLFloat && dtype.bits == 32) {
      auto* values = static_cast<float*>(tensor.data_ptr());
      std::fill(values, values + tensor.numel(), 1.0F);
    }
    inputs.push_back(tensor);
  }
  return inputs;
}

/// What the artifact says of devices that are emulated, and how this machine differs from what it
/// was made for.
void PrintWarnings(const char* file, const ffi::Module& scheduled) {
  const ffi::Any metadata = scheduled->GetFunction("info").value()();
  const auto about = ffi::json::Parse(metadata.cast<ffi::String>()).cast<ffi::json::Object>();
  if (auto emulated = about.Get(ffi::String("emulated")); emulated.has_value()) {
    std::cerr << file << ": emulated devices: " << emulated->cast<ffi::String>() << '\n';
  }
  const auto differences = ffi::Function::GetGlobalRequired("tvm_sched.machine_differences");
  for (const ffi::String& told : differences(metadata).cast<ffi::Array<ffi::String>>()) {
    std::cerr << file << ": warning: " << told << '\n';
  }
}

void Print(const ffi::Tensor& tensor) {
  std::cout << "output of " << tensor.numel() << " elements:";
  if (tensor.dtype().code == kDLFloat && tensor.dtype().bits == 32) {
    const auto* values = static_cast<const float*>(tensor.data_ptr());
    for (std::int64_t i = 0; i < tensor.numel() && i < 8; ++i) std::cout << ' ' << values[i];
  }
  std::cout << '\n';
}

int Run(int argc, char** argv) {
  // Absolute, since the dynamic loader looks for a name without a slash among the system's
  // libraries.
  const ffi::Module artifact =
      ffi::Module::LoadFromFile(std::filesystem::absolute(argv[1]).string());
  const std::optional<ffi::Module> scheduled = FindScheduled(artifact);
  if (!scheduled) {
    std::cerr << argv[1] << ": no module of kind tvm_sched is in it\n";
    return 1;
  }
  PrintWarnings(argv[1], *scheduled);
  if (argc > 2) (*scheduled)->GetFunction("load_parameters").value()(ffi::String(argv[2]));
  const ffi::Function main = (*scheduled)->GetFunction("main").value();
  const ffi::Function latency = (*scheduled)->GetFunction("latency").value();
  for (const ffi::Any& plan : Plans(*scheduled)) {  // `main` finds the plan by the inputs' shapes
    std::vector<ffi::Tensor> inputs = MakeInputs(plan.cast<ffi::json::Object>());
    std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    ffi::Any result;
    main.CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
    if (auto one = result.as<ffi::Tensor>()) {
      Print(*one);
    } else {
      for (const ffi::Tensor& tensor : result.cast<ffi::Array<ffi::Tensor>>()) Print(tensor);
    }
    std::cout << "latency: " << static_cast<double>(latency().cast<std::int64_t>()) * 1e-6
              << " ms\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: run_model ARTIFACT [PARAMETERS]\n";
    return 2;
  }
  try {
    return Run(argc, argv);
  } catch (const ffi::Error& error) {
    std::cerr << error.kind() << ": " << error.message() << '\n';
    return 1;
  }
}
