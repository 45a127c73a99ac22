// Kernels along one axis of a tensor, a block for each line of it: running sums, and the order of the elements.
//
// A tensor is (outer, length, inner); a line has `length` elements, `inner` apart. One after the other, lines take the
// blocks that there are.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tvm_sched {

constexpr int kLineThreads = 256;

template <class Element>
struct RunningSum {
  static constexpr float identity = 0;
  template <class Number>
  __device__ static Number Join(Number a, Number b) { return a + b; }
};

template <class Element>
struct RunningProduct {
  static constexpr float identity = 1;
  template <class Number>
  __device__ static Number Join(Number a, Number b) { return a * b; }
};

/// Running sums or products of each line, or of what lies before each element where they are exclusive.
template <class In, class Number, class Out, class Operation, int kLength, int kInner, long long kLines, bool kExclusive>
__device__ void scan(const In* in, Out* out) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto sums = reinterpret_cast<Number(*)[kLineThreads]>(shared);
  for (long long line = blockIdx.x; line < kLines; line += gridDim.x) {
    const long long first = line / kInner * kLength * kInner + line % kInner;
    Number before = Number(Operation::identity);  // of the elements of earlier rounds
    for (int begin = 0; begin < kLength; begin += kLineThreads) {
      const int position = begin + threadIdx.x, me = threadIdx.x;
      const long long place = first + (long long)position * kInner;
      sums[0][me] = position < kLength ? Number(in[place]) : Number(Operation::identity);
      int now = 0;
      __syncthreads();
      for (int step = 1; step < kLineThreads; step *= 2) {
        sums[1 - now][me] = me < step ? sums[now][me] : Operation::Join(sums[now][me - step], sums[now][me]);
        now = 1 - now;
        __syncthreads();
      }
      if (position < kLength) {
        const Number mine = !kExclusive ? sums[now][me] : me > 0 ? sums[now][me - 1] : Number(Operation::identity);
        out[place] = Out(Operation::Join(before, mine));
      }
      before = Operation::Join(before, sums[now][kLineThreads - 1]);
      __syncthreads();
    }
  }
}

template <class Number>
__device__ bool IsNan(Number a) {
  return !(a == a);
}
template <>
__device__ inline bool IsNan(__half a) { return __hisnan(a); }
template <>
__device__ inline bool IsNan(__nv_bfloat16 a) { return __hisnan(a); }

/// Whether an element stands before another: by value, not-a-number after all, or before all where order descends; equal
/// ones as they lie.
template <bool kDescending, class In>
__device__ bool Before(In a, int place_a, In b, int place_b) {
  const bool nan_a = IsNan(a), nan_b = IsNan(b);
  if (nan_a != nan_b) return kDescending ? nan_a : nan_b;
  if (!nan_a && a != b) return kDescending ? b < a : a < b;
  return place_a < place_b;
}

/// The places of a line's elements in their order, of which the first `kKept` are written: bitonic sort in memory of the
/// block's own, `kPadded` (a power of two from the length on) numbers.
template <class In, class Out, int kLength, int kPadded, int kKept, int kInner, long long kLines, bool kDescending>
__device__ void argsort(const In* in, Out* out, int* workspace) {
  int* order = workspace + (long long)blockIdx.x * kPadded;
  for (long long line = blockIdx.x; line < kLines; line += gridDim.x) {
    const In* data = in + line / kInner * kLength * kInner + line % kInner;
    for (int i = threadIdx.x; i < kPadded; i += kLineThreads) order[i] = i;
    __syncthreads();
    for (int size = 2; size <= kPadded; size *= 2) {
      for (int step = size / 2; step > 0; step /= 2) {
        for (int i = threadIdx.x; i < kPadded / 2; i += kLineThreads) {
          const int low = i / step * step * 2 + i % step, high = low + step;
          const int a = order[low], b = order[high];
          // What lies behind the end stands after all.
          const bool sorted = b >= kLength   ? a < kLength || a < b
                              : a >= kLength ? false
                                             : Before<kDescending>(data[(long long)a * kInner], a,
                                                                   data[(long long)b * kInner], b);
          if (sorted != ((low & size) == 0)) {
            order[low] = b;
            order[high] = a;
          }
        }
        __syncthreads();
      }
    }
    Out* to = out + line / kInner * kKept * kInner + line % kInner;
    for (int i = threadIdx.x; i < kKept; i += kLineThreads) to[(long long)i * kInner] = Out(order[i]);
    __syncthreads();
  }
}

}  // namespace tvm_sched
