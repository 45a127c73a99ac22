// cuBLASLt without a GPU: what its documentation asks of descriptors, layouts, alignments and
// workspaces is checked, and products are computed by loops in the order of their stream.
#include <algorithm>
#include <cstring>
#include <map>

#include "library.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace cuda_emulator;

namespace {

// cublasStatus_t, cudaDataType, cublasComputeType_t and the attributes that are known here.
constexpr int kNotInitialized = 1, kInvalid = 7, kExecutionFailed = 13, kNotSupported = 15;
constexpr int kReal32 = 0, kReal64 = 1, kReal16 = 2, kInteger8 = 3, kInteger32 = 10, kBrain16 = 14;
constexpr int kCompute16 = 64, kCompute32 = 68, kCompute32Pedantic = 69, kCompute64 = 70,
              kCompute32I = 72, kComputeTf32 = 77;
constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8,
              kBiasBatchStride = 10, kBiasType = 26, kPointerMode = 2;
constexpr int kOrder = 1, kBatchCount = 5, kBatchStride = 6;
constexpr int kMaxWorkspace = 1, kMinAlignmentA = 5;
constexpr int kRelu = 2, kBias = 4, kGelu = 32;
constexpr std::uint64_t kAlgorithmMark = 0x454D554C41544544;
constexpr std::size_t kWorkspaceAlignment = 256;  // "must be 256B aligned"

struct Desc {
  int compute = 0, scale = 0;
  int transpose_a = 0, transpose_b = 0, epilogue = 1, bias_type = -1, pointer_mode = 0;
  const void* bias = nullptr;
  std::int64_t bias_stride = 0;
};

struct Layout {
  int type = 0;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0, stride = 0;
  std::int32_t batches = 1;
  int order = 0;  // 0: columns one after another, 1: rows
};

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};

struct Algorithm {
  std::uint64_t mark, problem, workspace, alignments;
  std::uint64_t unused[4];
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

Type TypeOf(int type) {
  switch (type) {
    case kReal32:
      return Type::kFloat;
    case kReal64:
      return Type::kDouble;
    case kReal16:
      return Type::kHalf;
    case kBrain16:
      return Type::kBfloat16;
    case kInteger8:
      return Type::kInt8;
    case kInteger32:
      return Type::kInt32;
    default:
      return Type::kNone;
  }
}

/// What may stand together, of the table of cublasLtMatmul(): "" where it may.
std::string WhyNotTypes(const Desc& desc, const Layout& a, const Layout& b, const Layout& c,
                        const Layout& d) {
  if (c.type != d.type) return "C and D have different types";
  const bool half = a.type == kReal16 || a.type == kBrain16;
  bool known = false;
  switch (desc.compute) {
    case kCompute16:
      known = desc.scale == kReal16 && a.type == kReal16 && b.type == kReal16 && d.type == kReal16;
      break;
    case kCompute32:
    case kCompute32Pedantic:
      known = desc.scale == kReal32 && a.type == b.type &&
              ((half && (d.type == a.type || d.type == kReal32)) ||
               (a.type == kReal32 && d.type == kReal32) || (a.type == kInteger8 && d.type == kReal32));
      break;
    case kComputeTf32:
      known = desc.scale == kReal32 && a.type == kReal32 && b.type == kReal32 && d.type == kReal32;
      break;
    case kCompute64:
      known = desc.scale == kReal64 && a.type == kReal64 && b.type == kReal64 && d.type == kReal64;
      break;
    case kCompute32I:
      known = a.type == kInteger8 && b.type == kInteger8 &&
              ((desc.scale == kInteger32 && d.type == kInteger32) ||
               (desc.scale == kReal32 && d.type == kInteger8));
      break;
  }
  if (known) return "";
  return "the table of types has no row with compute type " + std::to_string(desc.compute) +
         ", scale type " + std::to_string(desc.scale) + " and A, B, D of types " +
         std::to_string(a.type) + ", " + std::to_string(b.type) + ", " + std::to_string(d.type);
}

/// op(A) and the like of one batch.
Matrix View(const Layout& layout, const void* data, bool transposed, std::int64_t batch) {
  const Type type = TypeOf(layout.type);
  auto* bytes = static_cast<char*>(const_cast<void*>(data));
  Matrix matrix{bytes + batch * layout.stride * static_cast<std::int64_t>(BytesOf(type)),
                type,
                static_cast<std::int64_t>(layout.rows),
                static_cast<std::int64_t>(layout.columns),
                layout.order == 0 ? 1 : layout.leading,
                layout.order == 0 ? layout.leading : 1};
  if (transposed) {
    std::swap(matrix.rows, matrix.columns);
    std::swap(matrix.row_step, matrix.column_step);
  }
  return matrix;
}

std::string WhyNotLayout(const Layout& layout, const char* name) {
  const auto least = static_cast<std::int64_t>(layout.order == 0 ? layout.rows : layout.columns);
  if (layout.leading < least) return std::string(name) + ": leading dimension below its extent";
  if (layout.order != 0 && layout.order != 1) return std::string(name) + ": order";
  if (TypeOf(layout.type) == Type::kNone) return std::string(name) + ": type";
  return "";
}

std::string WhyNotProblem(const Desc& desc, const Layout& a, const Layout& b, const Layout& c,
                          const Layout& d) {
  const std::pair<const Layout*, const char*> all[] = {{&a, "A"}, {&b, "B"}, {&c, "C"}, {&d, "D"}};
  for (const auto& [layout, name] : all) {
    if (std::string why = WhyNotLayout(*layout, name); !why.empty()) return why;
    if (layout->batches != a.batches) return std::string(name) + ": another number of batches";
  }
  if (std::string why = WhyNotTypes(desc, a, b, c, d); !why.empty()) return why;
  const Matrix left = View(a, nullptr, desc.transpose_a != 0, 0);
  const Matrix right = View(b, nullptr, desc.transpose_b != 0, 0);
  const Matrix out = View(d, nullptr, false, 0);
  if (left.columns != right.rows || left.rows != out.rows || right.columns != out.columns) {
    return "the extents do not match: A " + std::to_string(left.rows) + " x " +
           std::to_string(left.columns) + ", B " + std::to_string(right.rows) + " x " +
           std::to_string(right.columns) + ", D " + std::to_string(out.rows) + " x " +
           std::to_string(out.columns);
  }
  if (c.rows != d.rows || c.columns != d.columns) return "C has other extents than D";
  if (d.batches > 1 && std::abs(d.stride) < d.leading * static_cast<std::int64_t>(
                                                d.order == 0 ? d.columns : d.rows)) {
    return "batches of D overlap";
  }
  const int kind = desc.epilogue & ~kBias;
  if (kind != 1 && kind != 0 && kind != kRelu && kind != kGelu) return "an unknown epilogue";
  if (desc.compute == kCompute32I) {
    // "regular ordering": A is transposed, B is not, extents and leading dimensions multiples of 4.
    if (desc.transpose_a == 0 || desc.transpose_b != 0) return "int8 takes A transposed, B not";
    if (left.columns % 4 != 0 || left.rows % 4 != 0 || a.leading % 4 != 0 || b.leading % 4 != 0) {
      return "int8 needs extents and leading dimensions that are multiples of 4";
    }
    if (desc.epilogue != 1) return "int8 has no epilogues here";
  }
  return "";
}

std::uint64_t Fingerprint(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  std::uint64_t result = 1469598103934665603u;
  const auto add = [&result](std::uint64_t number) { result = (result ^ number) * 1099511628211u; };
  for (const Layout* layout : {&a, &b, &d}) {
    for (std::uint64_t number : {std::uint64_t(layout->type), layout->rows, layout->columns,
                                 std::uint64_t(layout->leading), std::uint64_t(layout->stride),
                                 std::uint64_t(layout->batches), std::uint64_t(layout->order)}) {
      add(number);
    }
  }
  for (int number : {desc.compute, desc.scale, desc.transpose_a, desc.transpose_b, desc.epilogue}) {
    add(static_cast<std::uint64_t>(number));
  }
  return result;
}

/// Where k is long the sums are split, as a library would.
std::size_t WorkspaceOf(const Desc& desc, const Layout& a, const Layout& d) {
  const Matrix left = View(a, nullptr, desc.transpose_a != 0, 0);
  const bool floats = desc.compute == kCompute32 || desc.compute == kComputeTf32;
  if (!floats || d.batches > 1 || left.columns < 64) return 0;
  return static_cast<std::size_t>(d.rows * d.columns) * sizeof(float);
}

double Activate(double value, int epilogue) {
  if (epilogue & kRelu) return value > 0 ? value : std::isnan(value) ? value : 0;
  if ((epilogue & kGelu) == 0) return value;
  const double inner = 0.7978845608028654 * (value + 0.044715 * value * value * value);
  return 0.5 * value * (1 + std::tanh(inner));
}

Accumulator AccumulatorOf(int compute) {
  switch (compute) {
    case kCompute16:
      return Accumulator::kHalf;
    case kComputeTf32:
      return Accumulator::kTf32;
    case kCompute64:
      return Accumulator::kDouble;
    case kCompute32I:
      return Accumulator::kInt32;
    default:
      return Accumulator::kFloat;
  }
}

double ReadScale(const void* scale, int type) { return Load(scale, 0, TypeOf(type)); }

/// One call, with everything that it needs when its turn comes.
struct Product {
  Desc desc;
  Layout a, b, c, d;
  double alpha, beta;
  const void *left, *right, *third;
  void* out;
  float* workspace;

  void Run() const {
    for (std::int32_t batch = 0; batch < d.batches; ++batch) {
      const Matrix to = View(d, out, false, batch), from = View(c, third, false, batch);
      const std::vector<double> sums =
          Multiply(View(a, left, desc.transpose_a != 0, batch),
                   View(b, right, desc.transpose_b != 0, batch), AccumulatorOf(desc.compute), workspace);
      const Type bias_type = desc.bias_type < 0 ? to.type : TypeOf(desc.bias_type);
      for (std::int64_t i = 0; i < to.rows; ++i) {
        for (std::int64_t j = 0; j < to.columns; ++j) {
          double value = alpha * sums[i * to.columns + j];
          if (beta != 0) value += beta * from.At(i, j);
          if (desc.epilogue & kBias) {
            value += Load(desc.bias, i + batch * desc.bias_stride, bias_type);
          }
          to.Set(i, j, Activate(value, desc.epilogue));
        }
      }
    }
  }
};

/// Elements from the first to behind the last of all batches.
std::size_t Extent(const Layout& layout) {
  const std::uint64_t lines = layout.order == 0 ? layout.columns : layout.rows;
  const std::uint64_t length = layout.order == 0 ? layout.rows : layout.columns;
  return static_cast<std::size_t>((lines - 1) * layout.leading + length +
                                  (layout.batches - 1) * layout.stride) *
         BytesOf(TypeOf(layout.type));
}

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

FAKE_EXPORT int cublasLtMatmulDescCreate(Desc** desc, int compute, int scale) {
  *desc = new Desc{compute, scale};
  return 0;
}
FAKE_EXPORT int cublasLtMatmulDescDestroy(Desc* desc) {
  delete desc;
  return 0;
}
FAKE_EXPORT int cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value,
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

FAKE_EXPORT int cublasLtMatrixLayoutCreate(Layout** layout, int type, std::uint64_t rows,
                                           std::uint64_t columns, std::int64_t leading) {
  *layout = new Layout{type, rows, columns, leading};
  return rows == 0 || columns == 0 ? Refuse("cublasLtMatrixLayoutCreate", kInvalid, "it is empty") : 0;
}
FAKE_EXPORT int cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return 0;
}
FAKE_EXPORT int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value,
                                                 std::size_t bytes) {
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

FAKE_EXPORT int cublasLtMatmulAlgoGetHeuristic(Handle* handle, Desc* desc, Layout* a, Layout* b,
                                               Layout* c, Layout* d, Preference* preference,
                                               int wanted, Heuristic* results, int* found) {
  *found = 0;
  if (handle == nullptr || wanted < 1) return kInvalid;
  if (std::string why = WhyNotProblem(*desc, *a, *b, *c, *d); !why.empty()) {
    return Refuse("cublasLtMatmulAlgoGetHeuristic", kNotSupported, why);
  }
  std::size_t workspace = WorkspaceOf(*desc, *a, *d);
  if (workspace > preference->workspace) workspace = 0;
  std::uint64_t alignments = 0;
  for (std::uint32_t alignment : preference->alignment) alignments = alignments << 16 | alignment;
  results[0] = {};
  results[0].algorithm = {kAlgorithmMark, Fingerprint(*desc, *a, *b, *d), workspace, alignments, {}};
  results[0].workspace = workspace;
  *found = 1;
  return 0;
}

FAKE_EXPORT int cublasLtMatmul(Handle* handle, Desc* desc, const void* alpha, const void* left,
                               Layout* a, const void* right, Layout* b, const void* beta,
                               const void* third, Layout* c, void* out, Layout* d,
                               const Algorithm* algorithm, void* workspace, std::size_t bytes,
                               void* stream) {
  const auto refuse = [](const std::string& why) { return Refuse("cublasLtMatmul", kInvalid, why); };
  if (handle == nullptr || handle->context != fake_cuda::current) {
    return refuse("the handle belongs to another context");
  }
  if (std::string why = WhyNotProblem(*desc, *a, *b, *c, *d); !why.empty()) return refuse(why);
  if (algorithm == nullptr || algorithm->mark != kAlgorithmMark ||
      algorithm->problem != Fingerprint(*desc, *a, *b, *d)) {
    return refuse("the algorithm was chosen for another problem");
  }
  if (bytes < algorithm->workspace) return refuse("the workspace is too small");
  const std::tuple<const void*, std::size_t, const char*> operands[] = {
      {left, Extent(*a), "A"}, {right, Extent(*b), "B"}, {third, Extent(*c), "C"}, {out, Extent(*d), "D"}};
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
  const Product product{*desc, *a, *b, *c, *d, ReadScale(alpha, desc->scale), ReadScale(beta, desc->scale),
                        left, right, third, out,
                        algorithm->workspace > 0 ? static_cast<float*>(workspace) : nullptr};
  const int status = Enqueue(stream, [product] { product.Run(); });
  return status == 0 ? 0 : Refuse("cublasLtMatmul", kExecutionFailed, "the stream is of another context");
}
