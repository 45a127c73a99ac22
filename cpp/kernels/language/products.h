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

/// Products of a few rows wait for memory, so weights are asked for this many bytes before they are
/// used. The processor itself looks ahead only to the end of a page of 4 KiB.
constexpr std::int64_t kAhead = 6144;

enum class Format { kFloat32, kBfloat16, kInt8, kInt4, kInt4Zeros, kBlocks };

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

/// Sums of `count` rows, at most kMostRows, and one or two tiles that lie one behind the other:
/// sums[tile][row][column], with kMostRows rows.
void FloatTiles(Format format, const float* const* rows, int count, std::int64_t terms,
                const void* tile, int tiles, float* sums);
/// How many tiles are best taken at once.
int FloatTilesAtOnce(std::int64_t rows);
/// The same of one tile of integers: sums[row][column].
void IntegerTile(Format format, const QuantizedRow* rows, int count, std::int64_t groups,
                 const void* tile, const GroupScales& beside, float* sums);

/// Quantise a row to 8 bits; `terms` may end within the last group, which is filled up with zeros.
void Quantize(const float* row, std::int64_t terms, std::int8_t* numbers, float* scales,
              std::int32_t* sums);

/// Integers of a tile in blocks of terms, each with a scale and a zero point for each column, which
/// are multiplied by rows that are not rounded: weight = (number - zero) * scale. A word of 32 bits
/// holds terms of one column, the first in its lowest bits; a tile has 16 words side by side.
struct BlockLayout {
  int bits = 0;            // 2, 4 or 8
  std::int64_t terms = 0;  // of a block: whole words
  enum class Scales { kFloat32, kFloat16 } scales = Scales::kFloat32;
  enum class Zeros { kMiddle, kUint8, kFloat32 } zeros = Zeros::kMiddle;

  std::int64_t Count(std::int64_t all) const { return (all + terms - 1) / terms; }
  std::int64_t Bytes(std::int64_t all) const { return Count(all) * terms * bits / 8 * kColumns; }
};
struct BlockTile {
  const std::uint8_t* numbers;
  const void* scales;
  const void* zeros;  // not of kMiddle
};
/// With more rows, a tile is widened once for all of them.
constexpr int kMostBlockRows = 4;
/// Sums of at most kMostBlockRows rows and a tile: sums[row][column].
void BlockRows(const BlockLayout& layout, const float* const* rows, int count, std::int64_t terms,
               const BlockTile& tile, float* sums);
/// The weights of a tile, as a tile of kFloat32.
void WidenBlocks(const BlockLayout& layout, std::int64_t terms, const BlockTile& tile, float* to);

/// Rows of a block of the matrix unit (AMX), and numbers of a block of one group.
constexpr int kMatrixRows = 16;
constexpr std::int64_t kMatrixTile = kMatrixRows * kGroup;
/// With fewer rows, the vector units are faster.
constexpr int kFewestMatrixRows = 16;

/// Whether this process may use AMX with bfloat16.
bool HasMatrixUnit();
/// Round at most kMatrixRows rows to bfloat16, as (groups, kMatrixRows, kGroup); what is missing
/// becomes 0.
void RoundRows(const float* const* rows, int count, std::int64_t terms, std::uint16_t* to);
/// The integers of a tile times their scales, rounded to bfloat16, as tiles of kBfloat16.
void WidenTile(Format format, const void* tile, std::int64_t groups, const GroupScales& beside,
               std::uint16_t* to);
/// Sums of one or two blocks of rows and one or two tiles of weights: sums[tile][row][column], with
/// 2 * kMatrixRows rows.
void MatrixTiles(const std::uint16_t* rows, int blocks, std::int64_t groups,
                 const std::uint16_t* const* tiles, int count, float* sums);
/// A thread calls it behind its last MatrixTiles.
void EndMatrix();

/// How many rows are best computed at once on this processor.
int RowsAtOnce();

/// Which version of the products this processor takes: "amx" (that is "vnni" with HasMatrixUnit),
/// "vnni", "avx2" or "portable". The environment variable TVM_SCHED_INTEGERS names a lesser one,
/// for tests.
const char* IntegerVersion();

}  // namespace tvm_sched::language

#endif  // TVM_SCHED_KERNELS_LANGUAGE_PRODUCTS_H_
