#include "product.h"

#include <cstdlib>
#include <utility>
#include <vector>

namespace cuda_emulator {

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
static std::string WhyNotTypes(const MatmulDesc& desc, const MatrixLayout& a, const MatrixLayout& b,
                               const MatrixLayout& c, const MatrixLayout& d) {
  if (c.type != d.type) return "C and D have different types";
  const bool half = a.type == kReal16 || a.type == kBrain16;
  bool known = false;
  switch (desc.compute) {
    case kCompute16:
      known = desc.scale == kReal16 && a.type == kReal16 && b.type == kReal16 && d.type == kReal16;
      break;
    case kCompute32:
    case kCompute32Pedantic:
      known =
          desc.scale == kReal32 && a.type == b.type &&
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
static Matrix View(const MatrixLayout& layout, const void* data, bool transposed,
                   std::int64_t batch) {
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

static std::string WhyNotLayout(const MatrixLayout& layout, const char* name) {
  const auto least = static_cast<std::int64_t>(layout.order == 0 ? layout.rows : layout.columns);
  if (layout.leading < least) return std::string(name) + ": leading dimension below its extent";
  if (layout.order != 0 && layout.order != 1) return std::string(name) + ": order";
  if (TypeOf(layout.type) == Type::kNone) return std::string(name) + ": type";
  return "";
}

std::string WhyNotProduct(const MatmulDesc& desc, const MatrixLayout& a, const MatrixLayout& b,
                          const MatrixLayout& c, const MatrixLayout& d) {
  const std::pair<const MatrixLayout*, const char*> all[] = {
      {&a, "A"}, {&b, "B"}, {&c, "C"}, {&d, "D"}};
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

std::uint64_t Fingerprint(const MatmulDesc& desc, const MatrixLayout& a, const MatrixLayout& b,
                          const MatrixLayout& d) {
  std::uint64_t result = 1469598103934665603u;
  const auto add = [&result](std::uint64_t number) { result = (result ^ number) * 1099511628211u; };
  for (const MatrixLayout* layout : {&a, &b, &d}) {
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

std::size_t WorkspaceOf(const MatmulDesc& desc, const MatrixLayout& a, const MatrixLayout& d) {
  const Matrix left = View(a, nullptr, desc.transpose_a != 0, 0);
  const bool floats = desc.compute == kCompute32 || desc.compute == kComputeTf32;
  if (!floats || d.batches > 1 || left.columns < 64) return 0;
  return static_cast<std::size_t>(d.rows * d.columns) * sizeof(float);
}

static double Activate(double value, int epilogue) {
  if (epilogue & kRelu) return value > 0 ? value : std::isnan(value) ? value : 0;
  if ((epilogue & kGelu) == 0) return value;
  const double inner = 0.7978845608028654 * (value + 0.044715 * value * value * value);
  return 0.5 * value * (1 + std::tanh(inner));
}

static Accumulator AccumulatorOf(int compute) {
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

void Product::Run() const {
  for (std::int32_t batch = 0; batch < d.batches; ++batch) {
    const Matrix to = View(d, out, false, batch), from = View(c, third, false, batch);
    const std::vector<double> sums = Multiply(View(a, left, desc.transpose_a != 0, batch),
                                              View(b, right, desc.transpose_b != 0, batch),
                                              AccumulatorOf(desc.compute), workspace);
    const Type bias_type = desc.bias_type < 0 ? to.type : TypeOf(desc.bias_type);
    for (std::int64_t i = 0; i < to.rows; ++i) {
      for (std::int64_t j = 0; j < to.columns; ++j) {
        double value = alpha * sums[i * to.columns + j];
        if (beta != 0) value += beta * from.At(i, j);
        if (desc.epilogue & kBias) {
          value += Load(desc.bias, i + batch * desc.bias_stride, bias_type);
        }
        value = Activate(value, desc.epilogue);
        const bool last = i == to.rows - 1 || j == to.columns - 1;
        to.Set(i, j, wrong && last ? value + 1 : value);
      }
    }
  }
}

std::size_t Extent(const MatrixLayout& layout) {
  const std::uint64_t lines = layout.order == 0 ? layout.columns : layout.rows;
  const std::uint64_t length = layout.order == 0 ? layout.rows : layout.columns;
  return static_cast<std::size_t>((lines - 1) * layout.leading + length +
                                  (layout.batches - 1) * layout.stride) *
         BytesOf(TypeOf(layout.type));
}

}  // namespace cuda_emulator
