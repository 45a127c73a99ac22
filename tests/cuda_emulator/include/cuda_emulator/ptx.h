// PTX instructions as functions: ptx.py calls the one whose name is the instruction's, with `_` for
// `.` and `::`.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_PTX_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_PTX_H_

#include <tuple>

#include "cuda_emulator/image.h"

namespace cuda_emulator {

template <class A, class B>
int SumOfProducts(unsigned a, unsigned b, unsigned c) {
  for (int shift = 0; shift < 32; shift += 8)
    c += static_cast<A>(a >> shift) * static_cast<B>(b >> shift);
  return static_cast<int>(c);
}

}  // namespace cuda_emulator

namespace cuda_emulator::ptx {

inline void dp4a_u32_s32(int, int& d, unsigned a, int b, int c) {
  d = SumOfProducts<unsigned char, signed char>(a, b, c);
}
inline void dp4a_s32_u32(int, int& d, int a, unsigned b, int c) {
  d = SumOfProducts<signed char, unsigned char>(a, b, c);
}

inline void Unknown(const char* text) {
  char message[256];
  std::snprintf(message, sizeof(message), "PTX that the emulator does not know: %.200s", text);
  TheDevice().fault(kLaunchFailed, message);
}

// ---- copies into shared memory ----

inline void Copy(int line, unsigned to, const void* from, unsigned bytes, unsigned read) {
  const bool aligned = to % bytes == 0 && reinterpret_cast<std::uintptr_t>(from) % bytes == 0;
  if (!aligned || (bytes != 4 && bytes != 8 && bytes != 16) || read > bytes) {
    char text[96];
    std::snprintf(text, sizeof(text),
                  "line %d: cp.async of %u bytes, addresses not at multiples of it", line, bytes);
    TheDevice().fault(kMisaligned, text);
  }
  TheDevice().copy(TheDevice().shared_at(to, bytes), from, read, bytes - read);
}
template <class P>
inline void cp_async_cg_shared_global(int line, unsigned to, P from, unsigned bytes,
                                      unsigned read = 16) {
  Copy(line, to, reinterpret_cast<const void*>(from), bytes, read);
}
template <class P>
inline void cp_async_ca_shared_global(int line, unsigned to, P from, unsigned bytes) {
  Copy(line, to, reinterpret_cast<const void*>(from), bytes, bytes);
}
inline void cp_async_commit_group(int) { TheDevice().commit(); }
inline void cp_async_wait_group(int, unsigned newest) { TheDevice().wait(newest); }
inline void cp_async_wait_all(int) {
  TheDevice().commit();
  TheDevice().wait(0);
}

// ---- matrices of 8 x 8 halves from shared memory: lanes 8 i to 8 i + 7 give the rows of matrix i
// ----

struct MatrixRow {
  const std::uint16_t* row;
  unsigned registers[4];
};

template <unsigned kCount, bool kTransposed>
void LoadMatrices(void** lanes) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    for (unsigned m = 0; m < kCount; ++m) {
      const auto at = [&](unsigned row, unsigned column) {
        return unsigned{static_cast<MatrixRow*>(lanes[8 * m + row])->row[column]};
      };
      static_cast<MatrixRow*>(lanes[lane])->registers[m] =
          kTransposed ? at(pair, group) | at(pair + 1, group) << 16
                      : at(group, pair) | at(group, pair + 1) << 16;
    }
  }
}

template <unsigned kCount, bool kTransposed, class R, std::size_t... I>
void LoadMatrix(int line, R registers, unsigned address, std::index_sequence<I...>) {
  MatrixRow mine{};
  if (Here().lane < 8 * kCount) {
    if (address % 16 != 0)
      TheDevice().fault(kMisaligned, "ldmatrix: a row that is not at a multiple of 16");
    mine.row = static_cast<const std::uint16_t*>(TheDevice().shared_at(address, 16));
  }
  TheDevice().exchange(line, ~0u, LoadMatrices<kCount, kTransposed>, &mine);
  ((std::get<I>(registers) = mine.registers[I]), ...);
}

#define CUDA_EMULATOR_LDMATRIX(name, count, transposed)                                         \
  template <class R>                                                                            \
  void name(int line, R registers, unsigned address) {                                          \
    LoadMatrix<count, transposed>(line, registers, address, std::make_index_sequence<count>()); \
  }
CUDA_EMULATOR_LDMATRIX(ldmatrix_sync_aligned_m8n8_x1_shared_b16, 1, false)
CUDA_EMULATOR_LDMATRIX(ldmatrix_sync_aligned_m8n8_x2_shared_b16, 2, false)
CUDA_EMULATOR_LDMATRIX(ldmatrix_sync_aligned_m8n8_x4_shared_b16, 4, false)
CUDA_EMULATOR_LDMATRIX(ldmatrix_sync_aligned_m8n8_x1_trans_shared_b16, 1, true)
CUDA_EMULATOR_LDMATRIX(ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16, 2, true)
CUDA_EMULATOR_LDMATRIX(ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, 4, true)
#undef CUDA_EMULATOR_LDMATRIX

// ---- products on tensor cores: registers as in "Matrix fragments for mma.m16n8k16" ----

struct Factors {
  unsigned a[4], b[2];
  float c[4];
};

template <class T>
float Half(unsigned pair, unsigned which) {
  T value;
  const auto bits = static_cast<std::uint16_t>(pair >> 16 * which);
  std::memcpy(&value, &bits, sizeof(value));
  return static_cast<float>(value);
}

/// 16 x 8 sums of 16, or of 8 where the second half of each row is missing.
template <class T, unsigned kDepth>
void MultiplyMatrices(void** lanes) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const auto& mine = *static_cast<Factors*>(lanes[lane]);
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    for (unsigned i = 0; i < 4 * kDepth / 16; ++i) {
      for (unsigned k = 0; k < 2; ++k)
        a[group + i % 2 * 8][pair + i / 2 * 8 + k] = Half<T>(mine.a[i], k);
    }
    for (unsigned i = 0; i < 2 * kDepth / 16; ++i) {
      for (unsigned k = 0; k < 2; ++k) b[pair + i * 8 + k][group] = Half<T>(mine.b[i], k);
    }
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    auto& mine = *static_cast<Factors*>(lanes[lane]);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (unsigned k = 0; k < kDepth; ++k) mine.c[i] += a[row][k] * b[k][column];
    }
  }
}

template <class T, unsigned kDepth, class D, class A, class B, class C>
void MultiplyAdd(int line, D d, A a, B b, C c) {
  Factors mine{};
  mine.c[0] = std::get<0>(c), mine.c[1] = std::get<1>(c), mine.c[2] = std::get<2>(c),
  mine.c[3] = std::get<3>(c);
  mine.a[0] = std::get<0>(a), mine.a[1] = std::get<1>(a), mine.b[0] = std::get<0>(b);
  if constexpr (kDepth == 16) {
    mine.a[2] = std::get<2>(a), mine.a[3] = std::get<3>(a), mine.b[1] = std::get<1>(b);
  }
  TheDevice().exchange(line, ~0u, MultiplyMatrices<T, kDepth>, &mine);
  std::get<0>(d) = mine.c[0], std::get<1>(d) = mine.c[1], std::get<2>(d) = mine.c[2],
  std::get<3>(d) = mine.c[3];
}

#define CUDA_EMULATOR_MMA(name, type, depth)    \
  template <class D, class A, class B, class C> \
  void name(int line, D d, A a, B b, C c) {     \
    MultiplyAdd<type, depth>(line, d, a, b, c); \
  }
CUDA_EMULATOR_MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, __half, 16)
CUDA_EMULATOR_MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, __nv_bfloat16, 16)
CUDA_EMULATOR_MMA(mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32, __half, 8)
CUDA_EMULATOR_MMA(mma_sync_aligned_m16n8k8_row_col_f32_bf16_bf16_f32, __nv_bfloat16, 8)
#undef CUDA_EMULATOR_MMA

}  // namespace cuda_emulator::ptx

inline std::size_t __cvta_generic_to_shared(const void* address) {
  return reinterpret_cast<std::size_t>(address);
}

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_PTX_H_
