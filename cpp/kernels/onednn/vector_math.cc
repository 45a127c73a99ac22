#include "kernels/onednn/vector_math.h"

#include <algorithm>
#include <limits>

namespace tvm_sched::onednn {

TVM_SCHED_VERSIONS float Largest(const float* values, std::int64_t count) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t k = 0; k < count; ++k) largest = std::max(largest, values[k]);
  return largest;
}

TVM_SCHED_VERSIONS float Exponentials(float* values, std::int64_t count, float largest) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t k = 0; k < count; ++k) {
    const float value = Exponential(values[k] - largest);
    values[k] = value;
    sum += value;
  }
  return sum;
}

TVM_SCHED_VERSIONS void Scale(float* values, std::int64_t count, float factor) {
#pragma omp simd
  for (std::int64_t k = 0; k < count; ++k) values[k] *= factor;
}

}  // namespace tvm_sched::onednn
