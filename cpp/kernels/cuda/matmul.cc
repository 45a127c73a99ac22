// Matrix products by cuBLASLt.
#include <tvm/ffi/error.h>

#include <algorithm>
#include <map>

#include "kernels/cuda/candidates.h"
#include "kernels/cuda/library_kernel.h"
#include "kernels/cuda/nvidia_libraries.h"
#include "kernels/cuda/value_check.h"
#include "runtime/throw.h"

namespace tvm_sched::cuda_kernels {

namespace {

constexpr int kMostAlgorithms = 4;
constexpr std::uint32_t kExpectedAlignment = 256;  // bytes, of what the library is given

/// An object of the library that a function destroys.
using Object = std::unique_ptr<void, int (*)(void*)>;

Object Own(void* made, int (*destroy)(void*)) { return Object(made, destroy); }

int BlasTypeOf(const std::string& dtype) {
  static const std::map<std::string, int> types{{"float32", kReal32},
                                                {"float16", kReal16},
                                                {"bfloat16", kBfloat16},
                                                {"int8", kInteger8},
                                                {"int32", kInteger32}};
  const auto found = types.find(dtype);
  if (found == types.end()) TVM_SCHED_THROW(ValueError) << "cuBLASLt multiplies no " << dtype;
  return found->second;
}

/// The library's handle belongs to a context.
void* HandleOfContext() {
  static std::mutex mutex;
  static std::map<runtime::cuda::Context, void*> handles;
  runtime::cuda::Context context = nullptr;
  runtime::cuda::Check(runtime::cuda::Driver().ContextGetCurrent(&context), "no context");
  const std::lock_guard lock(mutex);
  void*& handle = handles[context];
  if (handle == nullptr) CheckStatus(CublasLt().Create(&handle), "cuBLASLt cannot be initialised");
  return handle;
}

/// The descriptors of a product, and calls of it.
///
/// The library is column-major; so it computes the transposed result, B' A', whose columns
/// are our rows, and whose rows are the n columns that share a bias.
class Product {
 public:
  explicit Product(const MatmulDescription& d)
      : description_(d),
        handle_(HandleOfContext()),
        first_(Operand(d.b, d.n, d.k)),
        second_(Operand(d.a, d.k, d.m)),
        result_(Layout(d.result_dtype, d.n, d.m, d.n, d.m * d.n)),
        operation_(Operation()) {}

  int Run(const std::vector<void*>& data, const MatmulHeuristic& chosen, void* workspace,
          Stream stream) {
    const float one = 1, zero = 0;
    const std::int32_t whole_one = 1, whole_zero = 0;
    const void* factor = integers() ? static_cast<const void*>(&whole_one) : &one;
    const void* nothing = integers() ? static_cast<const void*>(&whole_zero) : &zero;
    if (description_.bias) SetBias(data[2]);
    return CublasLt().Matmul(handle_, operation_.get(), factor, data[1], first_.get(), data[0],
                             second_.get(), nothing, data.back(), result_.get(), data.back(),
                             result_.get(), &chosen.algorithm, workspace, chosen.workspace, stream);
  }

  /// By the library's heuristics the best first, for tensors at multiples of `alignment` bytes.
  std::vector<MatmulHeuristic> Algorithms(std::uint32_t alignment) const {
    void* made = nullptr;
    CheckStatus(CublasLt().PreferenceCreate(&made), "a preference of cuBLASLt");
    const Object preference = Own(made, CublasLt().PreferenceDestroy);
    const std::size_t largest = LargestWorkspace();
    CheckStatus(CublasLt().PreferenceSet(made, kPreferWorkspace, &largest, sizeof(largest)),
                "a preference");
    for (int operand = 0; operand < 4; ++operand) {
      CheckStatus(CublasLt().PreferenceSet(made, kPreferAlignmentA + operand, &alignment,
                                           sizeof(alignment)),
                  "a preference");
    }
    std::vector<MatmulHeuristic> known(kMostAlgorithms);
    int found = 0;
    const int status =
        CublasLt().Heuristic(handle_, operation_.get(), first_.get(), second_.get(), result_.get(),
                             result_.get(), made, kMostAlgorithms, known.data(), &found);
    known.resize(status == 0 ? std::min(found, kMostAlgorithms) : 0);
    std::erase_if(known, [](const MatmulHeuristic& each) { return each.state != 0; });
    return known;
  }

 private:
  bool integers() const { return description_.dtype == "int8"; }

  /// A matrix of ours as the library's, rows and columns exchanged, so that one that is transposed
  /// for us is one for the library, too (`Operation`).
  Object Operand(const MatrixDescription& matrix, std::int64_t rows, std::int64_t columns) const {
    if (matrix.transposed) std::swap(rows, columns);
    return Layout(description_.dtype, rows, columns, matrix.stride, matrix.batch_stride);
  }

  Object Layout(const std::string& dtype, std::int64_t rows, std::int64_t columns,
                std::int64_t leading, std::int64_t stride) const {
    void* made = nullptr;
    CheckStatus(CublasLt().LayoutCreate(&made, BlasTypeOf(dtype), rows, columns, leading),
                "a layout of cuBLASLt");
    Object layout = Own(made, CublasLt().LayoutDestroy);
    const auto count = static_cast<std::int32_t>(description_.batch);
    CheckStatus(CublasLt().LayoutSet(made, kLayoutBatchCount, &count, sizeof(count)), "a layout");
    CheckStatus(CublasLt().LayoutSet(made, kLayoutBatchStride, &stride, sizeof(stride)),
                "a layout");
    return layout;
  }

  Object Operation() const {
    void* made = nullptr;
    const int compute = integers()          ? kComputeInteger
                        : description_.tf32 ? kComputeTf32
                                            : kCompute32;
    CheckStatus(CublasLt().DescCreate(&made, compute, integers() ? kInteger32 : kReal32),
                "a product of cuBLASLt");
    Object operation = Own(made, CublasLt().DescDestroy);
    for (const auto& [attribute, matrix] :
         {std::pair(kDescTransposeA, description_.b), std::pair(kDescTransposeB, description_.a)}) {
      if (!matrix.transposed) continue;
      CheckStatus(CublasLt().DescSet(made, attribute, &kTransposed, sizeof(kTransposed)),
                  "a transposed operand of cuBLASLt");
    }
    const int bias = description_.bias ? kEpilogueBias : 0;
    const int activation = description_.activation == Activation::kRelu   ? kEpilogueRelu
                           : description_.activation == Activation::kGelu ? kEpilogueGelu
                                                                          : 0;
    const int epilogue = bias + activation == 0 ? kEpilogueDefault : bias + activation;
    CheckStatus(CublasLt().DescSet(made, kDescEpilogue, &epilogue, sizeof(epilogue)),
                "an epilogue of cuBLASLt");
    return operation;
  }

  void SetBias(void* bias) {
    CheckStatus(CublasLt().DescSet(operation_.get(), kDescBiasPointer, &bias, sizeof(bias)),
                "a bias of cuBLASLt");
  }

  MatmulDescription description_;
  void* handle_;
  Object first_, second_, result_, operation_;
};

class ProductAlgorithm final : public Candidate {
 public:
  ProductAlgorithm(std::shared_ptr<Product> product, const MatmulHeuristic& chosen)
      : product_(std::move(product)), chosen_(chosen) {}

  std::string label() const override {
    std::string label = "cuBLASLt's algorithm";
    for (const std::uint64_t word : chosen_.algorithm.data) label += " " + std::to_string(word);
    return label;
  }
  std::size_t workspace() const override { return chosen_.workspace; }
  bool Run(const std::vector<void*>& data, void* workspace, Stream stream) override {
    return product_->Run(data, chosen_, workspace, stream) == 0;
  }

 private:
  std::shared_ptr<Product> product_;
  MatmulHeuristic chosen_;
};

/// The largest power of 2, up to what the library expects, that divides all addresses.
std::uint32_t AlignmentOf(const std::vector<void*>& data) {
  std::uintptr_t bits = kExpectedAlignment;
  for (const void* address : data) bits |= reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::uint32_t>(bits & -bits);
}

std::string KeyOf(const MatmulDescription& d, std::uint32_t alignment) {
  std::string key = "product " + d.dtype + " " + d.result_dtype;
  const auto add = [&](std::int64_t value) { key += " " + std::to_string(value); };
  for (const std::int64_t value : {d.batch, d.m, d.n, d.k}) add(value);
  for (const MatrixDescription& matrix : {d.a, d.b}) {
    add(matrix.transposed);
    add(matrix.stride);
    add(matrix.batch_stride);
  }
  add(d.tf32);
  add(d.bias);
  add(static_cast<int>(d.activation));
  add(alignment);
  return key;
}

/// Algorithms that are chosen for the alignment that the arguments of a call have: the library has
/// faster ones for what is aligned as it expects.
class Matmul final : public Prepared {
 public:
  Matmul(const MatmulDescription& d, std::string name)
      : description_(d), name_(std::move(name)), product_(std::make_shared<Product>(d)) {}

  void Run(const std::vector<void*>& data, Stream stream) override {
    const std::uint32_t alignment = AlignmentOf(data);
    std::unique_ptr<FastestCandidate>& chosen = chosen_[alignment];
    if (!chosen) {
      std::vector<std::unique_ptr<Candidate>> candidates;
      for (const MatmulHeuristic& each : product_->Algorithms(alignment)) {
        candidates.push_back(std::make_unique<ProductAlgorithm>(product_, each));
      }
      chosen = std::make_unique<FastestCandidate>(KeyOf(description_, alignment), name_,
                                                  std::move(candidates),
                                                  [this] { return PlainKernelOf(description_); });
    }
    chosen->Run(data, stream);
  }

 private:
  MatmulDescription description_;
  std::string name_;
  std::shared_ptr<Product> product_;
  std::map<std::uint32_t, std::unique_ptr<FastestCandidate>> chosen_;
};

}  // namespace

std::unique_ptr<Prepared> PrepareMatmul(const MatmulDescription& description,
                                        const std::string& name) {
  return std::make_unique<Matmul>(description, name);
}

}  // namespace tvm_sched::cuda_kernels
