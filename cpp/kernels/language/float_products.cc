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

/// Ask for the weights that come kAhead bytes later.
inline __attribute__((always_inline)) void Ask(const void* now) {
  __builtin_prefetch(static_cast<const char*>(now) + kAhead);
}

/// Two terms of bfloat16, the upper halves of float32, lie side by side: a shift widens the first,
/// a mask the second.
inline __attribute__((always_inline)) void LoadPair(const std::uint16_t* from, Floats& first,
                                                    Floats& second) {
  VectorOf<std::uint32_t, kColumns>::Type both;
  std::memcpy(&both, from, sizeof both);
  const auto low = both << 16, high = both & 0xffff0000u;
  std::memcpy(&first, &low, sizeof first);
  std::memcpy(&second, &high, sizeof second);
}

/// One row: four sums at once hide the latency of an addition.
inline __attribute__((always_inline)) void OneRow(const float* row, std::int64_t terms,
                                                  const float* tile, float* sums) {
  Floats parts[4] = {}, weights;
  std::int64_t k = 0;
  for (; k + 4 <= terms; k += 4) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      Ask(tile + (k + u) * kColumns);
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

inline __attribute__((always_inline)) void OneRow(const float* row, std::int64_t terms,
                                                  const std::uint16_t* tile, float* sums) {
  Floats parts[4] = {}, first, second;
  std::int64_t k = 0;
  for (; k + 4 <= terms; k += 4) {
#pragma GCC unroll 2
    for (int u = 0; u < 4; u += 2) {
      Ask(tile + (k + u) * kColumns);
      LoadPair(tile + (k + u) * kColumns, first, second);
      parts[u] += row[k + u] * first;
      parts[u + 1] += row[k + u + 1] * second;
    }
  }
  for (; k < terms; k += 2) {
    LoadPair(tile + k * kColumns, first, second);
    parts[0] += row[k] * first;
    if (k + 1 < terms) parts[1] += row[k + 1] * second;
  }
  const Floats all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
  std::memcpy(sums, &all, sizeof all);
}

/// Sums of rows and tiles: parts[tile][row].
template <int kRows, int kTiles>
inline __attribute__((always_inline)) void Rows(const float* const* rows, std::int64_t terms,
                                                const float* const* tiles,
                                                Floats (&parts)[kTiles][kRows]) {
  Floats weights[kTiles];
  const float* from[kRows];
  for (int r = 0; r < kRows; ++r) from[r] = rows[r];
  for (std::int64_t k = 0; k < terms; ++k) {
    for (int t = 0; t < kTiles; ++t) {
      if constexpr (kRows <= 3) Ask(tiles[t] + k * kColumns);
      Load(tiles[t] + k * kColumns, weights[t]);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTiles; ++t) parts[t][r] += from[r][k] * weights[t];
    }
  }
}

template <int kRows, int kTiles>
inline __attribute__((always_inline)) void Rows(const float* const* rows, std::int64_t terms,
                                                const std::uint16_t* const* tiles,
                                                Floats (&parts)[kTiles][kRows]) {
  Floats first[kTiles], second[kTiles];
  const float* from[kRows];
  for (int r = 0; r < kRows; ++r) from[r] = rows[r];
  std::int64_t k = 0;
  for (; k + 2 <= terms; k += 2) {
    for (int t = 0; t < kTiles; ++t) {
      if constexpr (kRows <= 3) Ask(tiles[t] + k * kColumns);
      LoadPair(tiles[t] + k * kColumns, first[t], second[t]);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTiles; ++t) parts[t][r] += from[r][k] * first[t];
      for (int t = 0; t < kTiles; ++t) parts[t][r] += from[r][k + 1] * second[t];
    }
  }
  if (k < terms) {
    for (int t = 0; t < kTiles; ++t) {
      LoadPair(tiles[t] + k * kColumns, first[t], second[t]);
      for (int r = 0; r < kRows; ++r) parts[t][r] += from[r][k] * first[t];
    }
  }
}

template <int kRows, int kTiles, typename Weight>
inline __attribute__((always_inline)) void Rows(const float* const* rows, std::int64_t terms,
                                                const Weight* const* tiles, float* sums) {
  Floats parts[kTiles][kRows] = {};
  Rows(rows, terms, tiles, parts);
  for (int t = 0; t < kTiles; ++t) {
    std::memcpy(sums + t * kMostRows * kColumns, parts[t], sizeof parts[t]);
  }
}

/// Two tiles at once need half as many loads of rows, and registers for 24 sums.
template <int kTiles, typename Weight>
inline __attribute__((always_inline)) void Tile(const float* const* rows, int count,
                                                std::int64_t terms, const Weight* const* tiles,
                                                float* sums) {
  while (count > 0) {
    int done = 1;
    if (count >= 12 && kMostRows >= 12) {
      Rows<12, kTiles>(rows, terms, tiles, sums);
      done = 12;
    } else if (count >= 6) {
      Rows<6, kTiles>(rows, terms, tiles, sums);
      done = 6;
    } else if (count >= 3) {
      Rows<3, kTiles>(rows, terms, tiles, sums);
      done = 3;
    } else if (count == 2) {
      Rows<2, kTiles>(rows, terms, tiles, sums);
      done = 2;
    } else {
      for (int t = 0; t < kTiles; ++t) {
        OneRow(rows[0], terms, tiles[t], sums + t * kMostRows * kColumns);
      }
    }
    rows += done;
    sums += done * kColumns;
    count -= done;
  }
}

template <typename Weight>
inline __attribute__((always_inline)) void OneOrTwo(const float* const* rows, int count,
                                                    std::int64_t terms, const void* tile, int tiles,
                                                    std::int64_t bytes, float* sums) {
  const auto* first = static_cast<const Weight*>(tile);
  const Weight* each[2] = {first, first + bytes / sizeof(Weight)};
  if (tiles == 2) {
    Tile<2>(rows, count, terms, each, sums);
  } else {
    Tile<1>(rows, count, terms, each, sums);
  }
}

TVM_SCHED_VERSIONS void TileOfFloats(const float* const* rows, int count, std::int64_t terms,
                                     const void* tile, int tiles, std::int64_t bytes, float* sums) {
  OneOrTwo<float>(rows, count, terms, tile, tiles, bytes, sums);
}

TVM_SCHED_VERSIONS void TileOfHalves(const float* const* rows, int count, std::int64_t terms,
                                     const void* tile, int tiles, std::int64_t bytes, float* sums) {
  OneOrTwo<std::uint16_t>(rows, count, terms, tile, tiles, bytes, sums);
}

}  // namespace

std::int64_t TileBytes(Format format, std::int64_t terms) {
  const std::int64_t groups = (terms + kGroup - 1) / kGroup;
  switch (format) {
    case Format::kFloat32:
      return terms * kColumns * 4;
    case Format::kBfloat16:
      return groups * kGroup * kColumns * 2;
    case Format::kInt8:
      return groups * kGroup * kColumns;
    default:
      return groups * kGroup * kColumns / 2;
  }
}

void FloatTiles(Format format, const float* const* rows, int count, std::int64_t terms,
                const void* tile, int tiles, float* sums) {
  const std::int64_t bytes = TileBytes(format, terms);
  if (format == Format::kFloat32) {
    TileOfFloats(rows, count, terms, tile, tiles, bytes, sums);
  } else {
    TileOfHalves(rows, count, terms, tile, tiles, bytes, sums);
  }
}

int FloatTilesAtOnce(std::int64_t rows) { return rows >= 6 && RowsAtOnce() == kMostRows ? 2 : 1; }

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
