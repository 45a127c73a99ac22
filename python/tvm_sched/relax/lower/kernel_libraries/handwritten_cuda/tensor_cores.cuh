// Products of 16 x 16 by 16 x 8 on tensor cores, the registers that a warp holds for them, and copies into shared memory.
//
// Each has a second form, in plain CUDA C++: for GPUs before sm_80, and where TVM_SCHED_WITHOUT_PTX is defined.
//
// Layout of registers (PTX ISA, "Matrix fragments for mma.m16n8k16"), with group = lane / 4, pair = lane % 4 * 2:
//   A  (group, pair), (group + 8, pair), (group, pair + 8), (group + 8, pair + 8); two neighbours in each
//   B  (pair, group), (pair + 8, group); two neighbours down
//   C  (group, pair), (group, pair + 1), (group + 8, pair), (group + 8, pair + 1)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !defined(TVM_SCHED_WITHOUT_PTX)
#define TVM_SCHED_TENSOR_CORES 1
#else
#define TVM_SCHED_TENSOR_CORES 0
#endif

namespace tvm_sched {

constexpr float kLog2E = 1.4426950408889634f;

template <class Element>
__device__ inline unsigned Pack(float low, float high);

template <>
__device__ inline unsigned Pack<__half>(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&both);
}

template <>
__device__ inline unsigned Pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&both);
}

/// Copy 16 bytes from global into shared memory; `WaitForCopies` ends it.
__device__ inline void CopyAsync(void* to, const void* from) {
#if TVM_SCHED_TENSOR_CORES
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
#else
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}

__device__ inline void CommitCopies() {
#if TVM_SCHED_TENSOR_CORES
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

__device__ inline void WaitForCopies() {
#if TVM_SCHED_TENSOR_CORES
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// A of 16 rows from a matrix in shared memory whose rows are `stride` apart.
template <class Element>
__device__ inline void LoadA(unsigned (&a)[4], const Element* tile, int stride) {
  const int lane = threadIdx.x % 32;
#if TVM_SCHED_TENSOR_CORES
  const Element* row = tile + lane % 16 * stride + lane / 16 * 8;
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address) : "memory");
#else
  const Element* first = tile + lane / 4 * stride + lane % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    a[i] = *reinterpret_cast<const unsigned*>(first + i % 2 * 8 * stride + i / 2 * 8);
  }
#endif
}

/// B of 16 columns (two products) from a matrix whose rows are B's columns.
template <class Element>
__device__ inline void LoadB(unsigned (&b)[4], const Element* tile, int stride) {
  const int lane = threadIdx.x % 32;
#if TVM_SCHED_TENSOR_CORES
  const Element* row = tile + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address) : "memory");
#else
  const Element* first = tile + lane / 4 * stride + lane % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    b[i] = *reinterpret_cast<const unsigned*>(first + i / 2 * 8 * stride + i % 2 * 8);
  }
#endif
}

/// B of 16 columns (two products) from a matrix whose columns are B's columns.
template <class Element>
__device__ inline void LoadTransposedB(unsigned (&b)[4], const Element* tile, int stride) {
  const int lane = threadIdx.x % 32;
#if TVM_SCHED_TENSOR_CORES
  const Element* row = tile + (lane / 8 % 2 * 8 + lane % 8) * stride + lane / 16 * 8;
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address) : "memory");
#else
  const Element* first = tile + lane % 4 * 2 * stride + lane / 4;
  for (int i = 0; i < 4; ++i) {
    const auto* from = reinterpret_cast<const unsigned short*>(first + i % 2 * 8 * stride + i / 2 * 8);
    b[i] = from[0] | static_cast<unsigned>(from[stride]) << 16;
  }
#endif
}

#if !TVM_SCHED_TENSOR_CORES
template <class Element>
__device__ inline float Product(unsigned a, unsigned b) {
  Element left[2], right[2];
  memcpy(left, &a, sizeof(a));
  memcpy(right, &b, sizeof(b));
  return static_cast<float>(left[0]) * static_cast<float>(right[0]) +
         static_cast<float>(left[1]) * static_cast<float>(right[1]);
}
#endif

/// C += A B in float32.
template <class Element>
__device__ inline void MultiplyAdd(float (&c)[4], const unsigned (&a)[4], const unsigned* b) {
#if TVM_SCHED_TENSOR_CORES
  if constexpr (sizeof(Element) == 2 && __is_same(Element, __half)) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  const unsigned all = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  for (int t = 0; t < 4; ++t) {
    unsigned left[4];
    for (int i = 0; i < 4; ++i) left[i] = __shfl_sync(all, a[i], lane / 4 * 4 + t);
    for (int column = 0; column < 2; ++column) {
      const int from = (lane % 4 * 2 + column) * 4 + t;
      const unsigned low = __shfl_sync(all, b[0], from), high = __shfl_sync(all, b[1], from);
      c[column] += Product<Element>(left[0], low) + Product<Element>(left[2], high);
      c[2 + column] += Product<Element>(left[1], low) + Product<Element>(left[3], high);
    }
  }
#endif
}

}  // namespace tvm_sched
