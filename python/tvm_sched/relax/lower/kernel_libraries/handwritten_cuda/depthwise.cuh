// Depthwise convolutions of half precision with channels last. A thread computes eight channels, which are one vector in
// memory, of a few pixels beside each other, so that it reads each weight once for all of them. Sums are in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tvm_sched {

constexpr int kDepthwiseChannels = 8, kDepthwisePixels = 4;

/// `Shape` has, as constants: batch, channels, height, width, rows, columns (of the result), window_rows, window_columns,
/// stride_rows, stride_columns, top, left, dilation_rows, dilation_columns, biased, relu.
template <class Element, class Shape>
__device__ void depthwise(const Element* in, const Element* weights, const Element* bias, Element* out) {
  constexpr int kGroups = Shape::channels / kDepthwiseChannels;
  constexpr int kAcross = (Shape::columns + kDepthwisePixels - 1) / kDepthwisePixels;
  constexpr int kWindow = Shape::window_rows * Shape::window_columns;
  const long long item = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= (long long)Shape::batch * Shape::rows * kAcross * kGroups) return;
  const int channel = int(item % kGroups) * kDepthwiseChannels;
  const int first = int(item / kGroups % kAcross) * kDepthwisePixels;
  const int row = int(item / kGroups / kAcross % Shape::rows);
  const long long image = item / kGroups / kAcross / Shape::rows;

  float sums[kDepthwisePixels][kDepthwiseChannels];
  for (int p = 0; p < kDepthwisePixels; ++p) {
    for (int c = 0; c < kDepthwiseChannels; ++c) {
      sums[p][c] = 0.0f;
      if constexpr (Shape::biased) sums[p][c] = float(bias[channel + c]);
    }
  }
  for (int r = 0; r < Shape::window_rows; ++r) {
    const int y = row * Shape::stride_rows - Shape::top + r * Shape::dilation_rows;
    if (y < 0 || y >= Shape::height) continue;
    const Element* line = in + (image * Shape::height + y) * Shape::width * Shape::channels + channel;
    for (int s = 0; s < Shape::window_columns; ++s) {
      float weight[kDepthwiseChannels];
      for (int c = 0; c < kDepthwiseChannels; ++c) {
        weight[c] = float(weights[(channel + c) * kWindow + r * Shape::window_columns + s]);
      }
      for (int p = 0; p < kDepthwisePixels; ++p) {
        const int x = (first + p) * Shape::stride_columns - Shape::left + s * Shape::dilation_columns;
        if (x < 0 || x >= Shape::width) continue;
        alignas(16) Element values[kDepthwiseChannels];
        *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(line + (long long)x * Shape::channels);
        for (int c = 0; c < kDepthwiseChannels; ++c) sums[p][c] += float(values[c]) * weight[c];
      }
    }
  }
  for (int p = 0; p < kDepthwisePixels && first + p < Shape::columns; ++p) {
    alignas(16) Element values[kDepthwiseChannels];
    for (int c = 0; c < kDepthwiseChannels; ++c) {
      // Not-a-number stays, which fmaxf leaves out.
      values[c] = Element(Shape::relu && sums[p][c] < 0.0f ? 0.0f : sums[p][c]);
    }
    const long long pixel = (image * Shape::rows + row) * Shape::columns + first + p;
    *reinterpret_cast<uint4*>(out + pixel * Shape::channels + channel) = *reinterpret_cast<uint4*>(values);
  }
}

}  // namespace tvm_sched
