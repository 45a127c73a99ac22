// Products of a few rows with packed weights: (rows, terms) times (terms, columns).
//
// Weights are packed in tiles of 16 columns, so that a row of results needs no sum across lanes and
// one row reads them in the order in which they lie. `docs/formats/language_model.md` has the
// layouts.
#ifndef TVM_SCHED_KERNELS_LANGUAGE_PRODUCTS_H_
#define TVM_SCHED_KERNELS_LANGUAGE_PRODUCTS_H_

#include <cstdint>

namespace tvm_sched::language {

constexpr int kColumns = 16;
/// Terms that share a scale.
constexpr std::int64_t kGroup = 32;
/// Most rows that a product computes at once.
constexpr int kMostRows = 12;

enum class Format { kFloat32, kBfloat16, kInt8, kInt4, kInt4Zeros };

/// Bytes of a tile of weights, without scales.
std::int64_t TileBytes(Format format, std::int64_t terms);

/// A row of 8-bit numbers with a scale for each group, and the sum of the group's numbers.
struct QuantizedRow {
  const std::int8_t* numbers;
  const float* scales;
  const std::int32_t* sums;
};

/// What stands beside the integers of a tile: (groups, kColumns).
struct GroupScales {
  const std::uint16_t* scales;  // bfloat16
  const std::uint8_t* zeros;    // of kInt4Zeros
};

/// Sums of `rows` rows, at most kMostRows: sums[row][column] of one tile.
void FloatTile(Format format, const float* const* rows, int count, std::int64_t terms,
               const void* tile, float* sums);
void IntegerTile(Format format, const QuantizedRow* rows, int count, std::int64_t groups,
                 const void* tile, const GroupScales& beside, float* sums);

/// Quantise a row to 8 bits; `terms` may end within the last group, which is filled up with zeros.
void Quantize(const float* row, std::int64_t terms, std::int8_t* numbers, float* scales,
              std::int32_t* sums);

/// How many rows are best computed at once on this processor.
int RowsAtOnce();

/// Which of the versions of IntegerTile this processor takes: "vnni", "avx2" or "portable". The
/// environment variable TVM_SCHED_INTEGERS names a lesser one, for tests.
const char* IntegerVersion();

}  // namespace tvm_sched::language

#endif  // TVM_SCHED_KERNELS_LANGUAGE_PRODUCTS_H_
