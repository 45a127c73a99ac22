#include "kernels/cuda/cudnn_graph.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "runtime/cuda/stream_ends.h"

namespace tvm_sched::cuda_kernels {

namespace {

constexpr int kMostConfigurations = 64;
constexpr std::int64_t kAlignmentOfTensors = 16;  // bytes, which buffers of plans always have

const CudnnGraphApi& Api() {
  const CudnnGraphApi* api = CudnnGraph();
  if (api == nullptr) throw CudnnRefusal("cuDNN has no graph interface");
  return *api;
}

void Ask(int status, const char* what) {
  if (status != 0) throw CudnnRefusal(std::string(what) + ": status " + std::to_string(status));
}

std::int64_t BytesOf(int type) { return type == kCudnnHalf || type == kCudnnBfloat16 ? 2 : 4; }

}  // namespace

Descriptor::Descriptor(int kind) {
  void* made = nullptr;
  Ask(Api().Create(kind, &made), "a descriptor of cuDNN");
  made_.reset(made);
}

void Descriptor::Destroy::operator()(void* descriptor) const { Api().Destroy(descriptor); }

void Descriptor::SetIntegers(int attribute, const std::vector<std::int64_t>& values) const {
  Ask(Api().Set(get(), attribute, kIsInteger, static_cast<std::int64_t>(values.size()),
                values.data()),
      "integers of cuDNN");
}

void Descriptor::SetWord(int attribute, int type, int value) const {
  Ask(Api().Set(get(), attribute, type, 1, &value), "a word of cuDNN");
}

void Descriptor::SetFlag(int attribute, bool value) const {
  Ask(Api().Set(get(), attribute, kIsBoolean, 1, &value), "a flag of cuDNN");
}

void Descriptor::SetFloat(int attribute, float value) const {
  Ask(Api().Set(get(), attribute, kIsFloat, 1, &value), "a number of cuDNN");
}

void Descriptor::SetText(int attribute, const std::string& text) const {
  // With the character 0 at its end.
  Ask(Api().Set(get(), attribute, kIsText, static_cast<std::int64_t>(text.size()) + 1,
                text.c_str()),
      "a text of cuDNN");
}

void Descriptor::SetPointers(int attribute, int type, const std::vector<void*>& values) const {
  Ask(Api().Set(get(), attribute, type, static_cast<std::int64_t>(values.size()), values.data()),
      "pointers of cuDNN");
}

void Descriptor::Set(int attribute, const Descriptor& other) const {
  SetPointers(attribute, kIsDescriptor, {other.get()});
}

void Descriptor::Finalize() const { Ask(Api().Finalize(get()), "cuDNN refuses a descriptor"); }

std::int64_t Descriptor::Integer(int attribute) const {
  std::int64_t count = 0, value = 0;
  Ask(Api().Get(get(), attribute, kIsInteger, 1, &count, &value), "an integer of cuDNN");
  return value;
}

std::string Descriptor::Text(int attribute) const {
  std::int64_t size = 0;
  Ask(Api().Get(get(), attribute, kIsText, 0, &size, nullptr), "a text of cuDNN");
  std::string text(static_cast<std::size_t>(size), '\0');
  Ask(Api().Get(get(), attribute, kIsText, size, &size, text.data()), "a text of cuDNN");
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

std::vector<int> Descriptor::Words(int attribute, int type, int most) const {
  std::vector<int> words(static_cast<std::size_t>(most));
  std::int64_t count = 0;
  Ask(Api().Get(get(), attribute, type, most, &count, words.data()), "words of cuDNN");
  words.resize(static_cast<std::size_t>(std::min<std::int64_t>(count, most)));
  return words;
}

const Descriptor& OperationGraph::Make(const GraphTensor& tensor, bool is_virtual, bool by_value) {
  const Descriptor& made = tensors_.emplace_back(kGraphTensor);
  made.SetIntegers(kTensorId, {static_cast<std::int64_t>(tensors_.size())});
  made.SetWord(kTensorType, kIsDataType, tensor.type);
  made.SetIntegers(kTensorExtents, tensor.extents);
  made.SetIntegers(kTensorStrides, tensor.strides);
  made.SetIntegers(kTensorAlignment, {kAlignmentOfTensors});
  made.SetFlag(kTensorVirtual, is_virtual);
  if (by_value) made.SetFlag(kTensorByValue, true);
  made.Finalize();
  if (!is_virtual) ids_.push_back(static_cast<std::int64_t>(tensors_.size()));
  return made;
}

const Descriptor& OperationGraph::Argument(const GraphTensor& tensor, int index,
                                           std::int64_t offset) {
  operands_.push_back({index, offset * BytesOf(tensor.type), 0});
  return Make(tensor, /*is_virtual=*/false, /*by_value=*/false);
}

const Descriptor& OperationGraph::Scalar(int type, std::int64_t bits, int rank) {
  operands_.push_back({-1, 0, bits});
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(rank), 1);
  return Make({ones, ones, type}, /*is_virtual=*/false, /*by_value=*/true);
}

const Descriptor& OperationGraph::Number(float value, int rank) {
  return Scalar(kCudnnFloat, std::bit_cast<std::uint32_t>(value), rank);
}

const Descriptor& OperationGraph::WholeNumber(std::int32_t value, int rank) {
  return Scalar(kCudnnInt32, static_cast<std::uint32_t>(value), rank);
}

const Descriptor& OperationGraph::Virtual(const GraphTensor& tensor) {
  return Make(tensor, /*is_virtual=*/true, /*by_value=*/false);
}

void OperationGraph::Convolve(const Descriptor& x, const Descriptor& w, const Descriptor& y,
                              const std::vector<std::int64_t>& padding,
                              const std::vector<std::int64_t>& strides,
                              const std::vector<std::int64_t>& dilation) {
  const Descriptor& settings = settings_.emplace_back(kGraphConvolution);
  settings.SetWord(kConvolutionCompute, kIsDataType, kCudnnFloat);
  settings.SetWord(kConvolutionMode, kIsConvolutionMode, kCrossCorrelation);
  settings.SetIntegers(kConvolutionDilations, dilation);
  settings.SetIntegers(kConvolutionStrides, strides);
  settings.SetIntegers(kConvolutionPrePadding, padding);
  settings.SetIntegers(kConvolutionPostPadding, padding);
  settings.SetIntegers(kConvolutionDimensions, {static_cast<std::int64_t>(padding.size())});
  settings.Finalize();
  const Descriptor& operation = operations_.emplace_back(kGraphConvolve);
  operation.Set(kConvolveSettings, settings);
  operation.Set(kConvolveX, x);
  operation.Set(kConvolveW, w);
  operation.Set(kConvolveY, y);
  operation.SetFloat(kConvolveAlpha, 1);
  operation.SetFloat(kConvolveBeta, 0);
  operation.Finalize();
}

void OperationGraph::Multiply(const Descriptor& a, const Descriptor& b, const Descriptor& c) {
  const Descriptor& settings = settings_.emplace_back(kGraphMatmul);
  settings.SetWord(kMatmulCompute, kIsDataType, kCudnnFloat);
  settings.Finalize();
  const Descriptor& operation = operations_.emplace_back(kGraphMultiply);
  operation.Set(kMultiplyA, a);
  operation.Set(kMultiplyB, b);
  operation.Set(kMultiplyC, c);
  operation.Set(kMultiplySettings, settings);
  operation.Finalize();
}

void OperationGraph::Apply(const Pointwise& p, const Descriptor& x, const Descriptor& y) {
  const Descriptor& settings = settings_.emplace_back(kGraphPointwise);
  settings.SetWord(kPointwiseMode, kIsPointwiseMode, p.mode);
  settings.SetWord(kPointwiseCompute, kIsDataType, p.compute);
  if (p.axis >= 0) settings.SetIntegers(kPointwiseAxis, {p.axis});
  settings.Finalize();
  const Descriptor& operation = operations_.emplace_back(kGraphApply);
  operation.Set(kApplySettings, settings);
  operation.Set(kApplyX, x);
  operation.Set(kApplyY, y);
  if (p.b != nullptr) operation.Set(kApplyB, *p.b);
  if (p.mask != nullptr) operation.Set(kApplyMask, *p.mask);
  operation.Finalize();
}

void OperationGraph::Reduce(int reduction, const Descriptor& x, const Descriptor& y) {
  const Descriptor& settings = settings_.emplace_back(kGraphReduction);
  settings.SetWord(kReductionMode, kIsReduction, reduction);
  settings.SetWord(kReductionCompute, kIsDataType, kCudnnFloat);
  settings.Finalize();
  const Descriptor& operation = operations_.emplace_back(kGraphReduce);
  operation.Set(kReduceX, x);
  operation.Set(kReduceY, y);
  operation.Set(kReduceSettings, settings);
  operation.Finalize();
}

Descriptor OperationGraph::Finish(void* handle) const {
  Descriptor graph(kGraphOperations);
  std::vector<void*> operations;
  for (const Descriptor& operation : operations_) operations.push_back(operation.get());
  graph.SetPointers(kOperationsList, kIsDescriptor, operations);
  if (handle != nullptr) graph.SetPointers(kOperationsHandle, kIsHandle, {handle});
  graph.Finalize();
  return graph;
}

namespace {

/// Whether the rules allow the engine of a configuration.
bool Allowed(const Descriptor& configuration, const EngineRules& rules) {
  constexpr int kMostNotes = 16;
  const Descriptor engine(kGraphEngine);
  void* found = engine.get();
  std::int64_t count = 0;
  Ask(Api().Get(configuration.get(), kConfigurationEngine, kIsDescriptor, 1, &count, &found),
      "an engine of cuDNN");
  for (const int note : engine.Words(kEngineNumerics, kIsNumericalNote, kMostNotes)) {
    if (note == kNoteReducedSums || note == kNoteNondeterministic) return false;
    if (!rules.tensor_cores && (note == kNoteTensorCore || note == kNoteDownConvert)) return false;
  }
  const std::vector<int> behavior = engine.Words(kEngineBehavior, kIsBehaviorNote, kMostNotes);
  return rules.compiled_at_runtime ||
         std::find(behavior.begin(), behavior.end(), kNoteRuntimeCompilation) == behavior.end();
}

std::vector<Descriptor> Configurations(const Descriptor& graph, int mode, const Descriptor* device,
                                       const EngineRules& rules) {
  const Descriptor heuristics(kGraphHeuristics);
  heuristics.Set(kHeuristicGraph, graph);
  heuristics.SetWord(kHeuristicMode, kIsHeuristicMode, mode);
  if (device != nullptr) heuristics.Set(kHeuristicDevice, *device);
  heuristics.Finalize();
  std::vector<Descriptor> found;
  std::vector<void*> addresses;
  for (int k = 0; k < kMostConfigurations; ++k) {
    addresses.push_back(found.emplace_back(kGraphConfiguration).get());
  }
  std::int64_t count = 0;
  Ask(Api().Get(heuristics.get(), kHeuristicResults, kIsDescriptor, kMostConfigurations, &count,
                addresses.data()),
      "heuristics of cuDNN");
  found.erase(found.begin() + std::min<std::int64_t>(count, kMostConfigurations), found.end());
  std::erase_if(found, [&](const Descriptor& each) { return !Allowed(each, rules); });
  return found;
}

/// Plans by the heuristics, for the GPU of `handle` or of `device`.
std::vector<Descriptor> BuildPlans(const OperationGraph& operations, void* handle,
                                   const Descriptor* device, const EngineRules& rules) {
  const Descriptor graph = operations.Finish(handle);
  std::vector<Descriptor> plans;
  for (const int mode : {kHeuristicsA, kHeuristicsFallback}) {
    if (!plans.empty()) break;
    try {
      for (const Descriptor& configuration : Configurations(graph, mode, device, rules)) {
        if (plans.size() == rules.most) break;
        try {
          Descriptor plan(kGraphPlan);
          plan.Set(kPlanConfiguration, configuration);
          if (device != nullptr) {
            plan.Set(kPlanDevice, *device);
          } else {
            plan.SetPointers(kPlanHandle, kIsHandle, {handle});
          }
          plan.Finalize();
          plans.push_back(std::move(plan));
        } catch (const CudnnRefusal&) {
          // The heuristics also name engines that cannot be built.
        }
      }
    } catch (const CudnnRefusal&) {
      // This mode does not know the graph.
    }
  }
  return plans;
}

/// A finished plan, called with the kernel's tensors.
class Plan final : public Candidate {
 public:
  Plan(std::shared_ptr<OperationGraph> graph, Descriptor plan)
      : graph_(std::move(graph)),
        plan_(std::move(plan)),
        workspace_(static_cast<std::size_t>(plan_.Integer(kPlanWorkspace))),
        label_("a plan of cuDNN (" +
               std::to_string(std::hash<std::string>()(plan_.Text(kPlanText))) + ")") {
    for (const OperationGraph::Operand& operand : graph_->operands()) {
      numbers_.push_back(operand.number);
    }
  }

  std::string label() const override { return label_; }
  std::size_t workspace() const override { return workspace_; }

  bool Run(const std::vector<void*>& data, void* workspace, Stream stream) override {
    std::vector<void*> pointers;
    for (std::size_t k = 0; k < numbers_.size(); ++k) {
      const OperationGraph::Operand& operand = graph_->operands()[k];
      pointers.push_back(operand.index < 0
                             ? static_cast<void*>(&numbers_[k])
                             : static_cast<char*>(data[operand.index]) + operand.bytes);
    }
    try {
      if (!arguments_ || pointers != pointers_ || workspace != used_) {
        const Descriptor& made = arguments_.emplace(kGraphArguments);
        made.SetIntegers(kArgumentIds, graph_->ids());
        made.SetPointers(kArgumentPointers, kIsPointer, pointers);
        made.SetPointers(kArgumentWorkspace, kIsPointer, {workspace});
        made.Finalize();
        pointers_ = std::move(pointers);
        used_ = workspace;
      }
    } catch (const CudnnRefusal&) {
      arguments_.reset();
      return false;
    }
    return Api().Execute(CudnnHandle(stream), plan_.get(), arguments_->get()) == 0;
  }

 private:
  std::shared_ptr<OperationGraph> graph_;
  Descriptor plan_;
  std::size_t workspace_;
  std::string label_;
  std::vector<std::int64_t> numbers_;  // of operands that are no tensors, at their addresses
  std::optional<Descriptor> arguments_;
  std::vector<void*> pointers_;
  void* used_ = nullptr;
};

}  // namespace

std::string CudnnDeviceProperties(int device) {
  const Descriptor properties(kGraphDevice);
  properties.SetWord(kDeviceOrdinal, kIsInt32, device);
  properties.Finalize();
  return properties.Text(kDeviceText);
}

std::vector<std::string> CompilePlans(const OperationGraph& graph, const std::string& properties,
                                      const EngineRules& rules) {
  const Descriptor device(kGraphDevice);
  device.SetText(kDeviceText, properties);
  device.Finalize();
  std::vector<std::string> texts;
  for (const Descriptor& plan : BuildPlans(graph, nullptr, &device, rules)) {
    texts.push_back(plan.Text(kPlanText));
  }
  return texts;
}

std::vector<std::unique_ptr<Candidate>> PlanCandidates(const std::shared_ptr<OperationGraph>& graph,
                                                       const EngineRules& rules, Stream stream) {
  std::vector<std::unique_ptr<Candidate>> candidates;
  if (CudnnGraph() == nullptr) return candidates;
  for (Descriptor& plan : BuildPlans(*graph, CudnnHandle(stream), nullptr, rules)) {
    candidates.push_back(std::make_unique<Plan>(graph, std::move(plan)));
  }
  return candidates;
}

void* CudnnHandle(Stream stream) {
  static std::mutex mutex;
  static std::map<std::pair<runtime::cuda::Context, Stream>, void*> handles;
  runtime::cuda::Context context = nullptr;
  runtime::cuda::Check(runtime::cuda::Driver().ContextGetCurrent(&context), "no context");
  const std::lock_guard lock(mutex);
  void*& handle = handles[{context, stream}];
  if (handle == nullptr) {
    CheckStatus(Cudnn().Create(&handle), "cuDNN cannot be initialised");
    runtime::cuda::AtEndOfStream(stream, [key = std::pair(context, stream)] {
      const std::lock_guard inner(mutex);
      if (auto node = handles.extract(key)) Cudnn().Destroy(node.mapped());
    });
  }
  CheckStatus(Cudnn().SetStream(handle, stream), "cuDNN takes no stream");
  return handle;
}

}  // namespace tvm_sched::cuda_kernels
