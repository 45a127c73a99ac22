#include "kernels/onednn/vector_math.h"

#include <algorithm>
#include <limits>

namespace tvm_sched::onednn {

TVM_SCHED_VERSIONS float Largest(const float* values, std::int64_t count) {
  constexpr int kLanes = 16, kUnrolled = 4;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  // Several vectors, for a comparison waits for the one before it.
  VectorOf<float, kLanes>::Type found[kUnrolled] = {}, next;
  for (auto& each : found) each += kLowest;
  std::int64_t k = 0;
  for (; k + kUnrolled * kLanes <= count; k += kUnrolled * kLanes) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnrolled; ++u) {
      std::memcpy(&next, values + k + u * kLanes, sizeof next);
      found[u] = next > found[u] ? next : found[u];
    }
  }
  for (; k + kLanes <= count; k += kLanes) {
    std::memcpy(&next, values + k, sizeof next);
    found[0] = next > found[0] ? next : found[0];
  }
  for (int u = 1; u < kUnrolled; ++u) found[0] = found[u] > found[0] ? found[u] : found[0];
  float lanes[kLanes];
  std::memcpy(lanes, &found[0], sizeof lanes);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      lanes[lane] = std::max(lanes[lane], lanes[lane + half]);
    }
  }
  float largest = lanes[0];
  for (; k < count; ++k) largest = std::max(largest, values[k]);
  return largest;
}

TVM_SCHED_VERSIONS float Exponentials(float* values, std::int64_t count, float largest) {
  constexpr std::int64_t kBlock = 4 * kSummed;  // for a row has several accumulators
  double total = 0;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t end = std::min(count, first + kBlock);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t k = first; k < end; ++k) {
      const float value = Exponential(values[k] - largest);
      values[k] = value;
      sum += value;
    }
    total += sum;
  }
  return static_cast<float>(total);
}

TVM_SCHED_VERSIONS void Scale(float* values, std::int64_t count, float factor) {
#pragma omp simd
  for (std::int64_t k = 0; k < count; ++k) values[k] *= factor;
}

}  // namespace tvm_sched::onednn
