#include <cstring>

#include "kernels/language/products.h"
#include "kernels/onednn/vector_math.h"

namespace tvm_sched::language {

namespace {

using onednn::VectorOf;
using Floats = VectorOf<float, kColumns>::Type;

inline __attribute__((always_inline)) void Load(const float* from, Floats& to) {
  std::memcpy(&to, from, sizeof to);
}

/// A bfloat16 is the upper half of a float32.
inline __attribute__((always_inline)) void Load(const std::uint16_t* from, Floats& to) {
  VectorOf<std::uint16_t, kColumns>::Type halves;
  std::memcpy(&halves, from, sizeof halves);
  const auto wide = __builtin_convertvector(halves, VectorOf<std::uint32_t, kColumns>::Type) << 16;
  std::memcpy(&to, &wide, sizeof to);
}

/// One row: four sums at once hide the latency of an addition.
template <typename Weight>
inline __attribute__((always_inline)) void OneRow(const float* row, std::int64_t terms,
                                                  const Weight* tile, float* sums) {
  Floats parts[4] = {}, weights;
  std::int64_t k = 0;
  for (; k + 4 <= terms; k += 4) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      Load(tile + (k + u) * kColumns, weights);
      parts[u] += row[k + u] * weights;
    }
  }
  for (; k < terms; ++k) {
    Load(tile + k * kColumns, weights);
    parts[0] += row[k] * weights;
  }
  const Floats all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
  std::memcpy(sums, &all, sizeof all);
}

template <int kRows, typename Weight>
inline __attribute__((always_inline)) void Rows(const float* const* rows, std::int64_t terms,
                                                const Weight* tile, float* sums) {
  Floats parts[kRows] = {}, weights;
  const float* from[kRows];
  for (int r = 0; r < kRows; ++r) from[r] = rows[r];
  for (std::int64_t k = 0; k < terms; ++k) {
    Load(tile + k * kColumns, weights);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) parts[r] += from[r][k] * weights;
  }
  std::memcpy(sums, parts, sizeof parts);
}

template <typename Weight>
inline __attribute__((always_inline)) void Tile(const float* const* rows, int count,
                                                std::int64_t terms, const Weight* tile,
                                                float* sums) {
  while (count > 0) {
    int done = 1;
    if (count >= 12 && kMostRows >= 12) {
      Rows<12>(rows, terms, tile, sums);
      done = 12;
    } else if (count >= 6) {
      Rows<6>(rows, terms, tile, sums);
      done = 6;
    } else if (count >= 3) {
      Rows<3>(rows, terms, tile, sums);
      done = 3;
    } else if (count == 2) {
      Rows<2>(rows, terms, tile, sums);
      done = 2;
    } else {
      OneRow(rows[0], terms, tile, sums);
    }
    rows += done;
    sums += done * kColumns;
    count -= done;
  }
}

TVM_SCHED_VERSIONS void TileOfFloats(const float* const* rows, int count, std::int64_t terms,
                                     const float* tile, float* sums) {
  Tile(rows, count, terms, tile, sums);
}

TVM_SCHED_VERSIONS void TileOfHalves(const float* const* rows, int count, std::int64_t terms,
                                     const std::uint16_t* tile, float* sums) {
  Tile(rows, count, terms, tile, sums);
}

}  // namespace

std::int64_t TileBytes(Format format, std::int64_t terms) {
  const std::int64_t groups = (terms + kGroup - 1) / kGroup;
  switch (format) {
    case Format::kFloat32:
      return terms * kColumns * 4;
    case Format::kBfloat16:
      return terms * kColumns * 2;
    case Format::kInt8:
      return groups * kGroup * kColumns;
    default:
      return groups * kGroup * kColumns / 2;
  }
}

void FloatTile(Format format, const float* const* rows, int count, std::int64_t terms,
               const void* tile, float* sums) {
  if (format == Format::kFloat32) {
    TileOfFloats(rows, count, terms, static_cast<const float*>(tile), sums);
  } else {
    TileOfHalves(rows, count, terms, static_cast<const std::uint16_t*>(tile), sums);
  }
}

int RowsAtOnce() {
#ifdef __x86_64__
  // 32 registers of 64 bytes hold the sums of 12 rows; 16 of 32 bytes those of 6.
  static const int rows = __builtin_cpu_supports("avx512f") != 0 ? 12 : 6;
  return rows;
#else
  return 6;
#endif
}

}  // namespace tvm_sched::language
