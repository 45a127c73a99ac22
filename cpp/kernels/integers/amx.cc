#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/integers/functions.h"

namespace tvm_sched::integers {

bool MayUseAmx() {
  static const bool may = [] {
    unsigned int a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d >> 24 & 1) == 0 || (d >> 25 & 1) == 0) return false;  // AMX-TILE, AMX-INT8
    constexpr int kRequest = 0x1023, kTileData = 18;             // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return may;
}

#pragma GCC push_options
#pragma GCC target("avx2,avx512f,avx512bw,avx512vl,amx-tile,amx-int8")

namespace {

constexpr int kTileRows = 16, kTileBytes = 64;
constexpr int kMostTiles = kMostRows / kTileRows;

/// The instructions' wrappers do not say that they read and write memory.
inline __attribute__((always_inline)) void Fence(const void* memory) {
  __asm__ volatile("" ::"r"(memory) : "memory");
}

/// The shapes of the tiles: 0 to 3 are sums, 4, 6 and 7 numbers, 5 weights.
struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

thread_local int shaped_rows = 0, shaped_steps = 0;  // what this thread's tiles are; 0: not at all

void Shape(int rows, int steps) {
  if (rows == shaped_rows && steps == shaped_steps) return;
  Shapes shapes;
  for (int t = 0; t < 8; ++t) {
    shapes.rows[t] = static_cast<std::uint8_t>(t == 5 ? steps : rows);
    shapes.row_bytes[t] = static_cast<std::uint16_t>(t == 4 || t > 5 ? 4 * steps : kTileBytes);
  }
  Fence(&shapes);
  _tile_loadconfig(&shapes);
  shaped_rows = rows, shaped_steps = steps;
}

void End() {
  if (shaped_rows == 0) return;
  _tile_release();
  shaped_rows = shaped_steps = 0;
}

std::int64_t Tiles(std::int64_t steps) { return (steps + kTileRows - 1) / kTileRows; }

/// Tiles are equally long, and none is longer than needed.
std::int64_t Filled(std::int64_t steps) {
  const std::int64_t tiles = Tiles(steps);
  return (steps + tiles - 1) / tiles * tiles;
}

/// Rows that lie at equal distances are read where they are, others are copied first.
struct RowTile {
  const std::uint8_t* base;
  const std::int64_t* places;
  std::int64_t apart;  // 0: not equal
};

template <int kTiles>
void ProductOf(const RowTile* tiles, int rows, const Terms& terms, const std::int8_t* weights,
               std::int32_t* const* sums) {
  const auto chunks = static_cast<int>(Tiles(terms.steps));
  const auto steps = static_cast<int>(terms.steps / chunks);
  Shape(rows, steps);
  alignas(64) std::uint8_t copied[kTileRows * kTileBytes];
  _tile_zero(0);
  if constexpr (kTiles > 1) _tile_zero(1);
  if constexpr (kTiles > 2) _tile_zero(2);
  if constexpr (kTiles > 3) _tile_zero(3);
  for (int s = 0; s < terms.count; ++s) {
    std::int64_t place = terms.segments[s];
    for (int c = 0; c < chunks; ++c, place += 4 * steps, weights += steps * kTileBytes) {
      struct Place {
        const std::uint8_t* from;
        std::int64_t apart;
      };
      const auto find = [&](const RowTile& tile) __attribute__((always_inline)) -> Place {
        const std::uint8_t* base = tile.base + place;
        if (tile.apart != 0) return {base + tile.places[0], tile.apart};
        for (int r = 0; r < rows; ++r) {
          _mm512_store_si512(copied + r * kTileBytes, _mm512_loadu_si512(base + tile.places[r]));
        }
        Fence(copied);
        return {copied, kTileBytes};
      };
      _tile_loadd(5, weights, kTileBytes);
      const Place first = find(tiles[0]);
      _tile_loadd(4, first.from, first.apart);
      _tile_dpbusd(0, 4, 5);
      if constexpr (kTiles > 1) {
        const Place second = find(tiles[1]);
        _tile_loadd(6, second.from, second.apart);
        _tile_dpbusd(1, 6, 5);
      }
      if constexpr (kTiles > 2) {
        const Place third = find(tiles[2]);
        _tile_loadd(7, third.from, third.apart);
        _tile_dpbusd(2, 7, 5);
      }
      if constexpr (kTiles > 3) {
        const Place fourth = find(tiles[3]);
        _tile_loadd(4, fourth.from, fourth.apart);
        _tile_dpbusd(3, 4, 5);
      }
    }
  }
  _tile_stored(0, sums[0], kTileBytes);
  if constexpr (kTiles > 1) _tile_stored(1, sums[1], kTileBytes);
  if constexpr (kTiles > 2) _tile_stored(2, sums[2], kTileBytes);
  if constexpr (kTiles > 3) _tile_stored(3, sums[3], kTileBytes);
  Fence(sums);
}

void Product(const Rows<std::uint8_t>& rows, const Terms& terms, const std::int8_t* weights,
             int /*columns*/, std::int32_t* sums) {
  const int tiles = (rows.count + kTileRows - 1) / kTileRows;
  const int each = (rows.count + tiles - 1) / tiles;
  RowTile tile[kMostTiles];
  std::int32_t* to[kMostTiles];
  for (int t = 0; t < tiles; ++t) {
    // The last begins where it is whole.
    const int first = t * each < rows.count - each ? t * each : rows.count - each;
    const std::int64_t* mine = rows.places + first;
    std::int64_t apart = each > 1 ? mine[1] - mine[0] : kTileBytes;
    // There are two distances, within a line and between lines, so there is one if they add up.
    if (mine[each - 1] - mine[0] != (each - 1) * apart) apart = 0;
    tile[t] = {rows.base, mine, apart};
    to[t] = sums + first * kColumns;
  }
  Fence(rows.base);
  switch (tiles) {
    case 1:
      return ProductOf<1>(tile, each, terms, weights, to);
    case 2:
      return ProductOf<2>(tile, each, terms, weights, to);
    case 3:
      return ProductOf<3>(tile, each, terms, weights, to);
    default:
      return ProductOf<4>(tile, each, terms, weights, to);
  }
}

}  // namespace

#pragma GCC pop_options

const ByteProducts kAmx{kMostRows, Filled, Product, End};

}  // namespace tvm_sched::integers
#endif
