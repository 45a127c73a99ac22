// Kernels of the rows of a matrix, a block for each: normalisations and softmax in one launch, their statistics in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tvm_sched {

constexpr int kRowThreads = 256;

struct Add {
  static constexpr float identity = 0;
  __device__ static float Join(float a, float b) { return a + b; }
};
struct Largest {
  static constexpr float identity = -INFINITY;
  /// Not-a-number stays, which fmaxf leaves out.
  __device__ static float Join(float a, float b) { return a > b || a != a ? a : b; }
};

/// A number of each thread, joined over all of them.
template <class Operation>
__device__ float OfBlock(float mine) {
  __shared__ float of_warps[kRowThreads / 32];
  for (int other = 16; other > 0; other /= 2) {
    mine = Operation::Join(mine, __shfl_xor_sync(0xffffffffu, mine, other));
  }
  __syncthreads();  // what was there is read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
  __syncthreads();
  float all = of_warps[0];
  for (int w = 1; w < kRowThreads / 32; ++w) all = Operation::Join(all, of_warps[w]);
  return all;
}

template <class Operation, int kWidth, class Term>
__device__ float OfRow(Term term) {
  float mine = Operation::identity;
  for (int i = threadIdx.x; i < kWidth; i += kRowThreads) mine = Operation::Join(mine, term(i));
  return OfBlock<Operation>(mine);
}

/// (x - mean) / sqrt(variance + epsilon) * weight + bias; without a mean where it is a root mean square norm.
template <class In, class Weight, class Out, int kWidth, bool kCentred, bool kWeighted, bool kBiased>
__device__ void normalise(const In* in, const Weight* weight, const Weight* bias, Out* out, float epsilon) {
  const In* x = in + (long long)blockIdx.x * kWidth;
  Out* to = out + (long long)blockIdx.x * kWidth;
  const float mean = kCentred ? OfRow<Add, kWidth>([&](int i) { return float(x[i]); }) / kWidth : 0.0f;
  const float squares = OfRow<Add, kWidth>([&](int i) { return (float(x[i]) - mean) * (float(x[i]) - mean); });
  const float factor = 1.0f / sqrtf(squares / kWidth + epsilon);
  for (int i = threadIdx.x; i < kWidth; i += kRowThreads) {
    float value = (float(x[i]) - mean) * factor;
    if constexpr (kWeighted) value *= float(weight[i]);
    if constexpr (kBiased) value += float(bias[i]);
    to[i] = Out(value);
  }
}

template <class In, class Out, int kWidth>
__device__ void softmax(const In* in, Out* out) {
  const In* x = in + (long long)blockIdx.x * kWidth;
  Out* to = out + (long long)blockIdx.x * kWidth;
  const float largest = OfRow<Largest, kWidth>([&](int i) { return float(x[i]); });
  const float sum = OfRow<Add, kWidth>([&](int i) { return expf(float(x[i]) - largest); });
  for (int i = threadIdx.x; i < kWidth; i += kRowThreads) to[i] = Out(expf(float(x[i]) - largest) / sum);
}

}  // namespace tvm_sched
