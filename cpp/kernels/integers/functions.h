// Inner loops of products of 8-bit integers, compiled for several instruction sets. All are exact:
// numbers of 16 bits are multiplied, and sums are of 32 bits.
#ifndef TVM_SCHED_KERNELS_INTEGERS_FUNCTIONS_H_
#define TVM_SCHED_KERNELS_INTEGERS_FUNCTIONS_H_

#include <cstddef>
#include <cstdint>

namespace tvm_sched::integers {

/// Outputs that are computed together; weights are packed by as many.
constexpr int kColumns = 16;
/// Most rows of a tile on any instruction set.
constexpr int kMostRows = 64;

enum class Result { kInt32, kFloat32, kInt8, kUint8 };

/// What becomes of the sums: bias, factor and summand have a number for each column, to whole
/// tiles.
struct Epilogue {
  Result result = Result::kInt32;
  const std::int32_t* bias = nullptr;
  /// Of float results, in this order: the product, the sum, then bounds.
  const float* factor = nullptr;
  const float* summand = nullptr;
  float least = 0, greatest = 0;
  /// Of 8-bit results: round(value / divisor) + zero, within the type.
  float divisor = 1;
  /// 1 / divisor, if two steps of Newton's method with it give the quotient rounded to nearest.
  float reciprocal = 0;
  std::int32_t zero = 0;
  /// Or nullptr: factor / divisor and summand / divisor, rounded. The sum of the second and of a
  /// sum times the first is a result that is not yet rounded, if `doubt` is its distance from a
  /// half or more; otherwise it may round otherwise than the operations one by one.
  const float* slope = nullptr;
  const float* intercept = nullptr;
  float doubt = 0;
  /// What becomes of `least` and `greatest`.
  std::int32_t low = 0, high = 0;
  /// What becomes of each of the 256 bytes that the result may be, or nullptr.
  const std::uint8_t* table = nullptr;
};

/// The rows of a tile: where each begins, in numbers behind an address.
template <typename Number>
struct Rows {
  const Number* base;
  const std::int64_t* places;
  int count;
};

/// The terms of the sums of a tile: for each row, `steps` pairs of numbers (or four bytes each) at
/// each of the places `segments` behind the row's address.
struct Terms {
  const std::int64_t* segments;
  int count;
  std::int64_t steps;
};

/// Windows of a depthwise convolution: where the first one's factors begin, and how many bytes each
/// begins behind the one before it.
struct Windows {
  const std::byte* base;
  std::int64_t apart;
  int count;
};
/// sums[window][column] = start[column] + products. At each of the places `segments`, in bytes
/// behind a window's begin, lie the factors of kColumns channels, as many as an instruction adds
/// the products of, and `weights` has as many for each segment.
using DepthwiseSums = void (*)(const Windows& windows, const std::int64_t* segments, int count,
                               const std::byte* weights, const std::int32_t* start,
                               std::int32_t* sums);

/// to[k][column] = the bytes of a column of four rows that are `apart` from each other, the first
/// of which is `k` times `step` behind `from`.
void BringFours(const std::uint8_t* from, std::int64_t step, std::int64_t apart, std::int64_t count,
                std::uint8_t* to);

/// Products of bytes, for processors with instructions that add four of them exactly.
struct ByteProducts {
  int rows;  // most of a tile
  /// A segment of this many times four bytes is read as if it had as many as this returns: weights
  /// are filled up with zeros.
  std::int64_t (*filled)(std::int64_t steps);
  /// sums[row][column] of at least the first `columns`, for weights (segments, steps, kColumns, 4).
  void (*product)(const Rows<std::uint8_t>& rows, const Terms& terms, const std::int8_t* weights,
                  int columns, std::int32_t* sums);
  /// A thread calls it behind its last product.
  void (*end)();
  /// Of four unsigned bytes and as many signed ones.
  DepthwiseSums depthwise = nullptr;
  void (*bring_fours)(const std::uint8_t* from, std::int64_t step, std::int64_t apart,
                      std::int64_t count, std::uint8_t* to) = BringFours;
  /// sums[row][column] += numbers[row] * factors[column], modulo 2^32.
  void (*add_outer)(const std::int32_t* numbers, const std::int32_t* factors, int rows,
                    std::int32_t* sums) = nullptr;
};
/// Bytes behind the last row of a tile that a product may read.
constexpr int kByteOverread = 64;

/// For one instruction set.
struct Functions {
  int rows;  // most of a tile
  /// Numbers less the zero point.
  void (*widen_signed)(const std::int8_t* from, std::int32_t zero, std::int16_t* to,
                       std::int64_t count);
  void (*widen_unsigned)(const std::uint8_t* from, std::int32_t zero, std::int16_t* to,
                         std::int64_t count);
  /// sums[row][column] of at least the first `columns`, for weights in pairs: (segments, pairs,
  /// kColumns, 2).
  void (*product)(const Rows<std::int16_t>& rows, const Terms& terms, const std::int8_t* weights,
                  int columns, std::int32_t* sums);
  void (*wide_product)(const Rows<std::int16_t>& rows, const Terms& terms,
                       const std::int16_t* weights, int columns, std::int32_t* sums);
  /// Of two numbers of 16 bits.
  DepthwiseSums depthwise;
  /// Store `columns` results of each row, the rows `apart` bytes from each other; `first` is the
  /// number of the first column.
  void (*finish)(const Epilogue& epilogue, const std::int32_t* sums, int rows, std::int64_t first,
                 int columns, void* to, std::int64_t apart);
  const ByteProducts* bytes = nullptr;
};

/// The best that this processor has, or what the environment variable TVM_SCHED_INTEGERS names:
/// "amx", "avx512vnni", "avxvnni", "avx2", "sse4.1" or "portable". Throws std::invalid_argument.
const Functions& ChosenFunctions();

extern const Functions kPortable;
#ifdef __x86_64__
extern const Functions kSse41, kAvx2;
extern const ByteProducts kAvxVnni, kAvx512Vnni, kAmx;
void AddOuterAvx2(const std::int32_t* numbers, const std::int32_t* factors, int rows,
                  std::int32_t* sums);
/// With AVX-512, in place of that of kAvx2.
void FinishAvx512(const Epilogue& epilogue, const std::int32_t* sums, int rows, std::int64_t first,
                  int columns, void* to, std::int64_t apart);
/// With VBMI, too, which looks 64 bytes up in a table at once.
void FinishAvx512Vbmi(const Epilogue& epilogue, const std::int32_t* sums, int rows,
                      std::int64_t first, int columns, void* to, std::int64_t apart);
void BringFoursAvx512Vbmi(const std::uint8_t* from, std::int64_t step, std::int64_t apart,
                          std::int64_t count, std::uint8_t* to);
/// Asks the system to let this process use AMX. Whether the processor has it and the system agrees.
bool MayUseAmx();
#endif

}  // namespace tvm_sched::integers

#endif  // TVM_SCHED_KERNELS_INTEGERS_FUNCTIONS_H_
