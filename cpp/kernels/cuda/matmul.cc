// Matrix products by cuBLASLt.
#include <tvm/ffi/error.h>

#include <array>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/library_kernel.h"
#include "runtime/units.h"

namespace tvm_sched::cuda_kernels {

namespace {

/// An object of the library that a function destroys.
using Object = std::unique_ptr<void, int (*)(void*)>;

Object Own(void* made, int (*destroy)(void*)) { return Object(made, destroy); }

int DataType(const std::string& dtype) {
  static const std::map<std::string, int> types{{"float32", kReal32},
                                                {"float16", kReal16},
                                                {"bfloat16", kBfloat16},
                                                {"int8", kInteger8},
                                                {"int32", kInteger32}};
  const auto found = types.find(dtype);
  if (found == types.end()) TVM_FFI_THROW(ValueError) << "cuBLASLt multiplies no " << dtype;
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

/// The library is column-major; so it computes the transposed result, B' A', whose columns
/// are our rows, and whose rows are the n columns that share a bias.
class Matmul final : public Prepared {
 public:
  Matmul(const MatmulDescription& d, const std::string& name)
      : description_(d),
        name_(name),
        handle_(HandleOfContext()),
        first_(Operand(d.b, d.n, d.k)),
        second_(Operand(d.a, d.k, d.m)),
        result_(Layout(d.result_dtype, d.n, d.m, d.n, d.m * d.n)),
        operation_(Operation()) {
    Choose();
  }

  void Run(const std::vector<void*>& data, Stream stream) override {
    const float one = 1, zero = 0;
    const std::int32_t whole_one = 1, whole_zero = 0;
    const void* factor = integers() ? static_cast<const void*>(&whole_one) : &one;
    const void* nothing = integers() ? static_cast<const void*>(&whole_zero) : &zero;
    if (description_.bias) SetBias(data[2]);
    CheckStatus(CublasLt().Matmul(handle_, operation_.get(), factor, data[1], first_.get(), data[0],
                                  second_.get(), nothing, data.back(), result_.get(), data.back(),
                                  result_.get(), &chosen_.algorithm, workspace_.get(),
                                  chosen_.workspace, stream),
                "cuBLASLt failed in the kernel \"" + name_ + "\"");
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
    CheckStatus(CublasLt().LayoutCreate(&made, DataType(dtype), rows, columns, leading),
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

  void Choose() {
    void* made = nullptr;
    CheckStatus(CublasLt().PreferenceCreate(&made), "a preference of cuBLASLt");
    const Object preference = Own(made, CublasLt().PreferenceDestroy);
    const std::size_t largest = LargestWorkspace();
    CheckStatus(CublasLt().PreferenceSet(made, kPreferWorkspace, &largest, sizeof(largest)),
                "a preference");
    // Buffers lie at multiples of 64 in their arena; the library expects 256.
    const std::uint32_t alignment = runtime::kAlignment;
    for (int operand = 0; operand < 4; ++operand) {
      CheckStatus(CublasLt().PreferenceSet(made, kPreferAlignmentA + operand, &alignment,
                                           sizeof(alignment)),
                  "a preference");
    }
    int found = 0;
    CheckStatus(CublasLt().Heuristic(handle_, operation_.get(), first_.get(), second_.get(),
                                     result_.get(), result_.get(), made, 1, &chosen_, &found),
                "cuBLASLt has no algorithm for the kernel \"" + name_ + "\"");
    if (found == 0) TVM_FFI_THROW(RuntimeError) << "cuBLASLt has no algorithm for " << name_;
    if (chosen_.workspace > 0) workspace_ = AllocateWorkspace(chosen_.workspace, name_);
  }

  MatmulDescription description_;
  std::string name_;
  void* handle_;
  Object first_, second_, result_, operation_;
  MatmulHeuristic chosen_{};
  std::shared_ptr<std::byte> workspace_;
};

}  // namespace

std::unique_ptr<Prepared> PrepareMatmul(const MatmulDescription& description,
                                        const std::string& name) {
  return std::make_unique<Matmul>(description, name);
}

}  // namespace tvm_sched::cuda_kernels
