// cuBLASLt without a GPU: what its documentation asks of descriptors, layouts, alignments and
// workspaces is checked, and products are computed by loops in the order of their stream.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "product.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace cuda_emulator;

namespace {

// cublasStatus_t and the attributes that are known here.
constexpr int kNotInitialized = 1, kInvalid = 7, kExecutionFailed = 13, kNotSupported = 15;
constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8,
              kBiasBatchStride = 10, kBiasType = 26, kPointerMode = 2;
constexpr int kOrder = 1, kBatchCount = 5, kBatchStride = 6;
constexpr int kMaxWorkspace = 1, kMinAlignmentA = 5;
constexpr std::uint64_t kAlgorithmMark = 0x454D554C41544544;
constexpr std::size_t kWorkspaceAlignment = 256;  // "must be 256B aligned"

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};

struct Algorithm {
  std::uint64_t mark, problem, workspace, alignments, number;
  std::uint64_t unused[3];
};

struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct Handle {
  fake_cuda::ContextRecord* context;
};

double ReadScale(const void* scale, int type) { return Load(scale, 0, TypeOf(type)); }

template <class T>
bool Take(T& to, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T) || from == nullptr) return false;
  std::memcpy(&to, from, bytes);
  return true;
}

}  // namespace

FAKE_EXPORT int cublasLtCreate(Handle** handle) {
  if (fake_cuda::current == nullptr) {
    return Refuse("cublasLtCreate", kNotInitialized, "no context is current");
  }
  *handle = new Handle{fake_cuda::current};
  return 0;
}
FAKE_EXPORT int cublasLtDestroy(Handle* handle) {
  delete handle;
  return 0;
}
FAKE_EXPORT std::size_t cublasLtGetVersion() { return 130000; }

FAKE_EXPORT int cublasLtMatmulDescCreate(MatmulDesc** desc, int compute, int scale) {
  *desc = new MatmulDesc{compute, scale};
  return 0;
}
FAKE_EXPORT int cublasLtMatmulDescDestroy(MatmulDesc* desc) {
  delete desc;
  return 0;
}
FAKE_EXPORT int cublasLtMatmulDescSetAttribute(MatmulDesc* desc, int attribute, const void* value,
                                               std::size_t bytes) {
  bool taken = false;
  switch (attribute) {
    case kTransposeA:
      taken = Take(desc->transpose_a, value, bytes);
      break;
    case kTransposeB:
      taken = Take(desc->transpose_b, value, bytes);
      break;
    case kEpilogue:
      taken = Take(desc->epilogue, value, bytes);
      break;
    case kBiasPointer:
      taken = Take(desc->bias, value, bytes);
      break;
    case kBiasBatchStride:
      taken = Take(desc->bias_stride, value, bytes);
      break;
    case kBiasType:
      taken = Take(desc->bias_type, value, bytes);
      break;
    case kPointerMode:
      taken = Take(desc->pointer_mode, value, bytes) && desc->pointer_mode == 0;
      break;
  }
  return taken ? 0
               : Refuse("cublasLtMatmulDescSetAttribute", kInvalid,
                        "attribute " + std::to_string(attribute) + " of " + std::to_string(bytes) +
                            " bytes");
}

FAKE_EXPORT int cublasLtMatrixLayoutCreate(MatrixLayout** layout, int type, std::uint64_t rows,
                                           std::uint64_t columns, std::int64_t leading) {
  *layout = new MatrixLayout{type, rows, columns, leading};
  return rows == 0 || columns == 0 ? Refuse("cublasLtMatrixLayoutCreate", kInvalid, "it is empty")
                                   : 0;
}
FAKE_EXPORT int cublasLtMatrixLayoutDestroy(MatrixLayout* layout) {
  delete layout;
  return 0;
}
FAKE_EXPORT int cublasLtMatrixLayoutSetAttribute(MatrixLayout* layout, int attribute,
                                                 const void* value, std::size_t bytes) {
  bool taken = false;
  switch (attribute) {
    case kOrder:
      taken = Take(layout->order, value, bytes);
      break;
    case kBatchCount:
      taken = Take(layout->batches, value, bytes) && layout->batches > 0;
      break;
    case kBatchStride:
      taken = Take(layout->stride, value, bytes);
      break;
  }
  return taken ? 0
               : Refuse("cublasLtMatrixLayoutSetAttribute", kInvalid,
                        "attribute " + std::to_string(attribute));
}

FAKE_EXPORT int cublasLtMatmulPreferenceCreate(Preference** preference) {
  *preference = new Preference;
  return 0;
}
FAKE_EXPORT int cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return 0;
}
FAKE_EXPORT int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute,
                                                     const void* value, std::size_t bytes) {
  bool taken = false;
  if (attribute == kMaxWorkspace) taken = Take(preference->workspace, value, bytes);
  if (attribute >= kMinAlignmentA && attribute < kMinAlignmentA + 4) {
    taken = Take(preference->alignment[attribute - kMinAlignmentA], value, bytes);
  }
  return taken ? 0
               : Refuse("cublasLtMatmulPreferenceSetAttribute", kInvalid,
                        "attribute " + std::to_string(attribute));
}

FAKE_EXPORT int cublasLtMatmulAlgoGetHeuristic(Handle* handle, MatmulDesc* desc, MatrixLayout* a,
                                               MatrixLayout* b, MatrixLayout* c, MatrixLayout* d,
                                               Preference* preference, int wanted,
                                               Heuristic* results, int* found) {
  *found = 0;
  if (handle == nullptr || wanted < 1) return kInvalid;
  if (std::string why = WhyNotProduct(*desc, *a, *b, *c, *d); !why.empty()) {
    return Refuse("cublasLtMatmulAlgoGetHeuristic", kNotSupported, why);
  }
  std::size_t workspace = WorkspaceOf(*desc, *a, *d);
  if (workspace > preference->workspace) workspace = 0;
  std::uint64_t alignments = 0;
  for (std::uint32_t alignment : preference->alignment) alignments = alignments << 16 | alignment;
  // Two where one may be wrong; more would take the tests longer.
  const int known = std::getenv("FAKE_CUDA_WRONG") != nullptr ? std::min(wanted, 2) : 1;
  for (; *found < known; ++*found) {
    results[*found] = {};
    results[*found].algorithm = {kAlgorithmMark, Fingerprint(*desc, *a, *b, *d),     workspace,
                                 alignments,     static_cast<std::uint64_t>(*found), {}};
    results[*found].workspace = workspace;
  }
  return 0;
}

FAKE_EXPORT int cublasLtMatmul(Handle* handle, MatmulDesc* desc, const void* alpha,
                               const void* left, MatrixLayout* a, const void* right,
                               MatrixLayout* b, const void* beta, const void* third,
                               MatrixLayout* c, void* out, MatrixLayout* d,
                               const Algorithm* algorithm, void* workspace, std::size_t bytes,
                               void* stream) {
  const auto refuse = [](const std::string& why) {
    return Refuse("cublasLtMatmul", kInvalid, why);
  };
  if (handle == nullptr || handle->context != fake_cuda::current) {
    return refuse("the handle belongs to another context");
  }
  if (std::string why = WhyNotProduct(*desc, *a, *b, *c, *d); !why.empty()) return refuse(why);
  if (algorithm == nullptr || algorithm->mark != kAlgorithmMark ||
      algorithm->problem != Fingerprint(*desc, *a, *b, *d)) {
    return refuse("the algorithm was chosen for another problem");
  }
  if (bytes < algorithm->workspace) return refuse("the workspace is too small");
  const std::tuple<const void*, std::size_t, const char*> operands[] = {{left, Extent(*a), "A"},
                                                                        {right, Extent(*b), "B"},
                                                                        {third, Extent(*c), "C"},
                                                                        {out, Extent(*d), "D"}};
  int shift = 48;
  for (const auto& [address, extent, name] : operands) {
    const std::size_t alignment = algorithm->alignments >> shift & 0xFFFF;
    shift -= 16;
    if (std::string why = WhyNotMemory(address, extent, alignment, name); !why.empty()) {
      return refuse(why);
    }
  }
  if (desc->epilogue & kBias) {
    const std::size_t element = BytesOf(TypeOf(desc->bias_type < 0 ? d->type : desc->bias_type));
    const std::string why = WhyNotMemory(desc->bias, d->rows * element, element, "the bias");
    if (!why.empty()) return refuse(why);
  }
  if (algorithm->workspace > 0) {
    const std::string why =
        WhyNotMemory(workspace, algorithm->workspace, kWorkspaceAlignment, "the workspace");
    if (!why.empty()) return refuse(why);
  }
  const Product product{*desc,
                        *a,
                        *b,
                        *c,
                        *d,
                        ReadScale(alpha, desc->scale),
                        ReadScale(beta, desc->scale),
                        left,
                        right,
                        third,
                        out,
                        algorithm->workspace > 0 ? static_cast<float*>(workspace) : nullptr,
                        IsWrong("cublaslt", algorithm->number)};
  const std::vector<const void*> arguments{
      left, right, third, out, product.workspace, desc->epilogue & kBias ? desc->bias : nullptr};
  const int status = Enqueue(stream, [product] { product.Run(); }, "cublasLtMatmul", arguments);
  return status == 0
             ? 0
             : Refuse("cublasLtMatmul", kExecutionFailed, "the stream is of another context");
}
