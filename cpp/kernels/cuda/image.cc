#include "kernels/cuda/image.h"

#include "kernels/cuda/call.h"
#include "kernels/cuda/nvidia_libraries.h"
#include "kernels/cuda/value_check.h"
#include "runtime/cuda/stream_ends.h"
#include "runtime/json_cursor.h"

namespace tvm_sched::cuda_kernels {

using driver::Check;
using driver::Driver;
using runtime::JsonCursor;

namespace {

constexpr std::int64_t kVersion = 3;
constexpr unsigned kDefaultSharedLimit = 48 << 10;
constexpr std::size_t kWorkspaceAlignment = 256;  // as of memory that the driver hands out

std::array<unsigned, 3> ReadExtents(const JsonCursor& list) {
  const std::vector<JsonCursor> items = list.Items();
  if (items.size() != 3) list.Fail("three extents are expected");
  std::array<unsigned, 3> extents{};
  for (int i = 0; i < 3; ++i) extents[i] = static_cast<unsigned>(items[i].Int(1, (1LL << 31) - 1));
  return extents;
}

LaunchDescription ReadLaunch(const JsonCursor& item, const FunctionDescription& function) {
  item.AllowFields({"symbol", "grid", "block", "shared_bytes", "pointers"});
  LaunchDescription launch{item.Field("symbol").Name(), ReadExtents(item.Field("grid")),
                           ReadExtents(item.Field("block"))};
  launch.shared_bytes = static_cast<unsigned>(item.Field("shared_bytes").Int(0, 1 << 30));
  for (const JsonCursor& pointer : item.Field("pointers").Items()) {
    const std::vector<JsonCursor> pair = pointer.Items();
    if (pair.size() != 2) pointer.Fail("a kind and an index are expected");
    const bool workspace = pair[0].Word({"tensor", "workspace"}) == 1;
    const std::size_t size =
        workspace ? function.workspaces.size() : static_cast<std::size_t>(function.tensors);
    launch.pointers.push_back(
        {workspace, pair[1].Index(size, workspace ? "workspaces" : "tensors")});
  }
  return launch;
}

}  // namespace

std::map<std::string, FunctionDescription> ReadFunctions(const std::string& json) {
  const JsonCursor document = JsonCursor::Parse(json, "CUDA kernels");
  document.AllowFields({"version", "functions"});
  const JsonCursor version = document.Field("version");
  if (version.NonNegative() > kVersion) {
    version.Unexpected("at most " + std::to_string(kVersion) +
                       ": the artifact was written by a newer tvm_sched than this library");
  }
  std::map<std::string, FunctionDescription> functions;
  for (const auto& [name, item] : document.Field("functions").Fields()) {
    item.AllowFields({"tensors", "workspaces", "launches", "attention", "convolution"});
    FunctionDescription& function = functions[name];
    function.tensors = static_cast<int>(item.Field("tensors").Int(1, 1 << 16));
    for (const JsonCursor& size : item.Field("workspaces").Items()) {
      function.workspaces.push_back(static_cast<std::size_t>(size.Int(1, 1LL << 50)));
    }
    for (const JsonCursor& launch : item.Field("launches").Items()) {
      function.launches.push_back(ReadLaunch(launch, function));
    }
    if (const auto attention = item.OptionalField("attention")) {
      function.attention = ReadAttention(*attention);
    }
    if (const auto convolution = item.OptionalField("convolution")) {
      function.convolution = ReadConvolution(*convolution);
    }
  }
  return functions;
}

driver::Function Image::Find(const std::string& symbol, unsigned shared_bytes) {
  driver::Context context = nullptr;
  Check(Driver().ContextGetCurrent(&context), "asking for the context failed");
  const std::lock_guard lock(mutex_);
  auto found = modules_.find(context);
  if (found == modules_.end()) {
    driver::Module module = nullptr;
    Check(Driver().ModuleLoadData(&module, bytes_.data()),
          "the artifact's kernels cannot be loaded; if they are for other GPUs, compile again with "
          "these GPUs' architecture in TVM_SCHED_CUDA_ARCHS");
    found = modules_.emplace(context, driver::ModuleHandle(module)).first;
  }
  driver::Function function = nullptr;
  Check(Driver().ModuleGetFunction(&function, found->second.get(), symbol.c_str()),
        "the artifact's binary has no kernel \"" + symbol + "\"");
  if (shared_bytes > kDefaultSharedLimit) {
    Check(Driver().FunctionSetAttribute(function, driver::kFunctionMaxDynamicSharedMemory,
                                        static_cast<int>(shared_bytes)),
          "the kernel \"" + symbol + "\" needs " + std::to_string(shared_bytes) +
              " bytes of shared memory");
  }
  return function;
}

class ImageFunction::OwnLaunches final : public Candidate {
 public:
  OwnLaunches(const ImageFunction& function, OnStream& here) : function_(function), here_(here) {}
  std::string label() const override { return "our own kernel"; }
  std::size_t workspace() const override { return 0; }  // has its own
  bool foreign() const override { return false; }
  bool Run(const std::vector<void*>& data, void*, driver::Stream stream) override {
    function_.Launch(here_, data, stream);
    return true;
  }

 private:
  const ImageFunction& function_;
  OnStream& here_;
};

ImageFunction::OnStream& ImageFunction::Prepare(driver::Context context, driver::Stream stream) {
  const std::lock_guard lock(mutex_);
  auto found = streams_.find({context, stream});
  if (found != streams_.end()) return found->second;
  OnStream made;
  for (const LaunchDescription& launch : description_.launches) {
    made.kernels.push_back(image_->Find(launch.symbol, launch.shared_bytes));
  }
  std::size_t total = 0;
  std::vector<std::size_t> offsets;
  for (std::size_t size : description_.workspaces) {
    offsets.push_back(total);
    total += (size + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  }
  if (total > 0) made.memory = AllocateWorkspace(total, name_);
  for (std::size_t offset : offsets) made.workspaces.push_back(made.memory.get() + offset);
  const std::pair key(context, stream);
  driver::AtEndOfStream(stream, [weak = weak_from_this(), key] {
    if (const auto self = weak.lock()) self->Forget(key);
  });
  OnStream& here = streams_.emplace(key, std::move(made)).first->second;
  std::vector<std::unique_ptr<Candidate>> candidates;
  if (description_.attention) {
    candidates = AttentionCandidates(*description_.attention, stream);
  } else if (description_.convolution && CudnnVersion() > 0) {
    candidates = ConvolutionCandidates(*description_.convolution, stream);
  }
  if (!candidates.empty()) {
    const std::string key = description_.attention ? KeyOf(*description_.attention)
                                                   : KeyOf(*description_.convolution) + " or ours";
    candidates.push_back(std::make_unique<OwnLaunches>(*this, here));
    here.fastest = std::make_unique<FastestCandidate>(key, name_, std::move(candidates), [this] {
      return description_.attention ? PlainKernelOf(*description_.attention)
                                    : PlainKernelOf(*description_.convolution);
    });
  }
  return here;
}

void ImageFunction::Forget(const std::pair<driver::Context, driver::Stream>& key) {
  const std::lock_guard lock(mutex_);
  streams_.erase(key);
}

void ImageFunction::MakeReady(tvm::ffi::PackedArgs args) {
  const CallOnGpu call(name_, description_.tensors, args);
  Prepare(call.context, call.stream);
}

void ImageFunction::Call(tvm::ffi::PackedArgs args) {
  const CallOnGpu call(name_, description_.tensors, args);
  OnStream& here = Prepare(call.context, call.stream);
  if (here.fastest) {
    here.fastest->Run(call.data, call.stream);
  } else {
    Launch(here, call.data, call.stream);
  }
}

void ImageFunction::Launch(OnStream& here, const std::vector<void*>& data,
                           driver::Stream stream) const {
  for (std::size_t k = 0; k < description_.launches.size(); ++k) {
    const LaunchDescription& launch = description_.launches[k];
    std::vector<void*> addresses;  // as the kernel's arguments
    for (const PointerSource& pointer : launch.pointers) {
      addresses.push_back((pointer.workspace ? here.workspaces : data)[pointer.index]);
    }
    std::vector<void*> parameters;  // where the arguments are
    parameters.reserve(addresses.size());
    for (void*& address : addresses) parameters.push_back(&address);
    const auto& [gx, gy, gz] = launch.grid;
    const auto& [bx, by, bz] = launch.block;
    Check(Driver().LaunchKernel(here.kernels[k], gx, gy, gz, bx, by, bz, launch.shared_bytes,
                                stream, parameters.data(), nullptr),
          "the kernel \"" + launch.symbol + "\" was refused");
  }
}

}  // namespace tvm_sched::cuda_kernels
