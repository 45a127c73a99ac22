// Products of many rows on AMX, the matrix unit of newer Intel processors.
#include <cstdlib>
#include <cstring>

#include "kernels/language/products.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
// GCC 12's header initialises vectors that may hold anything with themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tvm_sched::language {

bool HasMatrixUnit() {
  static const bool has = [] {
    const char* asked = std::getenv("TVM_SCHED_INTEGERS");
    if (asked != nullptr && *asked != 0 && std::strcmp(asked, "amx") != 0) return false;
    unsigned int a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d >> 22 & 1) == 0 || (d >> 24 & 1) == 0) return false;  // AMX-BF16, AMX-TILE
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a >> 5 & 1) == 0) return false;
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM; AVX512-BF16 above
    return __builtin_cpu_supports("avx512bw") != 0 &&
           syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return has;
}

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,amx-tile,amx-bf16")

namespace {

constexpr int kRowBytes = 64;

/// The instructions' wrappers do not say that they read and write memory.
inline __attribute__((always_inline)) void Fence(const void* memory) {
  __asm__ volatile("" ::"r"(memory) : "memory");
}

struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

thread_local bool shaped = false;

void Shape() {
  if (shaped) return;
  Shapes shapes;
  for (int t = 0; t < 8; ++t) shapes.rows[t] = kMatrixRows, shapes.row_bytes[t] = kRowBytes;
  Fence(&shapes);
  _tile_loadconfig(&shapes);
  shaped = true;
}

/// Registers 0 to 3 are sums, 4 and 5 weights, 6 and 7 rows.
template <int kBlocks, int kTiles>
void Tiles(const std::uint16_t* rows, std::int64_t groups, const std::uint16_t* const* tiles,
           float* sums) {
  _tile_zero(0);
  if constexpr (kTiles > 1) _tile_zero(1);
  if constexpr (kBlocks > 1) _tile_zero(2);
  if constexpr (kBlocks > 1 && kTiles > 1) _tile_zero(3);
  const std::uint16_t* below = rows + groups * kMatrixTile;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t place = g * kMatrixTile;
    _tile_loadd(4, tiles[0] + place, kRowBytes);
    _tile_loadd(6, rows + place, kRowBytes);
    _tile_dpbf16ps(0, 6, 4);
    if constexpr (kTiles > 1) {
      _tile_loadd(5, tiles[1] + place, kRowBytes);
      _tile_dpbf16ps(1, 6, 5);
    }
    if constexpr (kBlocks > 1) {
      _tile_loadd(7, below + place, kRowBytes);
      _tile_dpbf16ps(2, 7, 4);
    }
    if constexpr (kBlocks > 1 && kTiles > 1) _tile_dpbf16ps(3, 7, 5);
  }
  constexpr int kBlock = kMatrixRows * kColumns;
  _tile_stored(0, sums, kRowBytes);
  if constexpr (kTiles > 1) _tile_stored(1, sums + 2 * kBlock, kRowBytes);
  if constexpr (kBlocks > 1) _tile_stored(2, sums + kBlock, kRowBytes);
  if constexpr (kBlocks > 1 && kTiles > 1) _tile_stored(3, sums + 3 * kBlock, kRowBytes);
  Fence(sums);
}

/// Store two terms of 16 columns as pairs of bfloat16.
inline __attribute__((always_inline)) void StorePair(std::uint16_t* to, __m512 first,
                                                     __m512 second) {
  alignas(64) static constexpr std::uint16_t kInTurn[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kInTurn), both));
}

/// Numbers of 8 bits, four terms of each column, times scales, plus shifts.
template <bool kSigned>
inline __attribute__((always_inline)) void StoreQuad(std::uint16_t* to, __m512i quad, __m512 scales,
                                                     __m512 shifts) {
  const auto number = [&](int term) __attribute__((always_inline)) {
    const __m512i top = _mm512_slli_epi32(quad, 24 - 8 * term);
    const __m512i whole = kSigned ? _mm512_srai_epi32(top, 24) : _mm512_srli_epi32(top, 24);
    const __m512 value = _mm512_cvtepi32_ps(whole);
    return kSigned ? _mm512_mul_ps(value, scales) : _mm512_fmadd_ps(value, scales, shifts);
  };
  StorePair(to, number(0), number(1));
  StorePair(to + 32, number(2), number(3));
}

}  // namespace

void RoundRows(const float* const* rows, int count, std::int64_t terms, std::uint16_t* to) {
  const std::int64_t groups = (terms + kGroup - 1) / kGroup;
  for (int r = 0; r < kMatrixRows; ++r) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t left = terms - g * kGroup;
      const auto mask = [&](std::int64_t done) {
        if (r >= count || left <= done) return static_cast<__mmask16>(0);
        return static_cast<__mmask16>(left - done >= 16 ? 0xffff : (1 << (left - done)) - 1);
      };
      const float* from = rows[r < count ? r : 0] + g * kGroup;
      const __m512 low = _mm512_maskz_loadu_ps(mask(0), from);
      const __m512 high = _mm512_maskz_loadu_ps(mask(16), from + 16);
      _mm512_storeu_si512(to + g * kMatrixTile + r * kGroup,
                          (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
  }
}

void WidenTile(Format format, const void* tile, std::int64_t groups, const GroupScales& beside,
               std::uint16_t* to) {
  const auto* from = static_cast<const std::uint8_t*>(tile);
  for (std::int64_t g = 0; g < groups; ++g, to += kMatrixTile) {
    const __m256i halves =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(beside.scales + g * kColumns));
    const __m512 scales = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    if (format == Format::kInt8) {
      for (int q = 0; q < 8; ++q, from += 64) {
        StoreQuad<true>(to + q * 64, _mm512_loadu_si512(from), scales, scales);
      }
      continue;
    }
    __m512 zeros = _mm512_set1_ps(-8);
    if (format == Format::kInt4Zeros) {
      zeros = _mm512_sub_ps(_mm512_setzero_ps(),
                            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(
                                reinterpret_cast<const __m128i*>(beside.zeros + g * kColumns)))));
    }
    const __m512 shifts = _mm512_mul_ps(zeros, scales);
    const __m512i mask = _mm512_set1_epi8(15);
    for (int q = 0; q < 4; ++q, from += 64) {
      const __m512i both = _mm512_loadu_si512(from);
      StoreQuad<false>(to + q * 64, _mm512_and_si512(both, mask), scales, shifts);
      StoreQuad<false>(to + (q + 4) * 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask),
                       scales, shifts);
    }
  }
}

void MatrixTiles(const std::uint16_t* rows, int blocks, std::int64_t groups,
                 const std::uint16_t* const* tiles, int count, float* sums) {
  Shape();
  Fence(rows);
  if (blocks > 1 && count > 1) {
    Tiles<2, 2>(rows, groups, tiles, sums);
  } else if (blocks > 1) {
    Tiles<2, 1>(rows, groups, tiles, sums);
  } else if (count > 1) {
    Tiles<1, 2>(rows, groups, tiles, sums);
  } else {
    Tiles<1, 1>(rows, groups, tiles, sums);
  }
}

void EndMatrix() {
  if (shaped) _tile_release();
  shaped = false;
}

#pragma GCC pop_options

}  // namespace tvm_sched::language

#else

namespace tvm_sched::language {

bool HasMatrixUnit() { return false; }
void RoundRows(const float* const*, int, std::int64_t, std::uint16_t*) {}
void WidenTile(Format, const void*, std::int64_t, const GroupScales&, std::uint16_t*) {}
void MatrixTiles(const std::uint16_t*, int, std::int64_t, const std::uint16_t* const*, int,
                 float*) {}
void EndMatrix() {}

}  // namespace tvm_sched::language

#endif
