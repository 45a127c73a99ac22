// Softmax and its logarithm along any dimension, vectorised along memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/onednn/own_kernel.h"
#include "kernels/onednn/vector_math.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

constexpr std::int64_t kColumns = 256;  // computed together where columns lie next to each other
constexpr std::int64_t kTaskElements = 16 << 10;  // fewer are not worth another thread
constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// Numbers of a row that is copied, filled up with -infinity to whole vectors.
constexpr std::int64_t kCopied = 2048, kLanes = 16;

/// Rows that lie one after the other.
void Rows(const float* source, float* result, std::int64_t rows, std::int64_t count, bool log) {
  float copy[kCopied];
  const std::int64_t whole = (count + kLanes - 1) / kLanes * kLanes;
  const bool copied = whole <= kCopied && whole > count;
  for (std::int64_t row = 0; row < rows; ++row, source += count, result += count) {
    float* values = copied ? copy : result;
    const std::int64_t length = copied ? whole : count;
    std::copy_n(source, count, values);
    std::fill_n(values + count, length - count, kLowest);
    const float largest = Largest(values, length), sum = Exponentials(values, length, largest);
    if (log) {
      const float last = std::log(sum);
      for (std::int64_t k = 0; k < count; ++k) result[k] = (source[k] - largest) - last;
      continue;
    }
    Scale(values, length, 1 / sum);
    if (copied) std::copy_n(values, count, result);
  }
}

/// At most kColumns columns, next to each other; the next element of a column is `inner` further
/// on.
TVM_SCHED_VERSIONS void Columns(const float* source, float* result, std::int64_t columns,
                                std::int64_t count, std::int64_t inner, bool log) {
  float largest[kColumns], sum[kColumns];
  double total[kColumns];
  std::fill_n(largest, columns, kLowest);
  std::fill_n(total, columns, 0.0);
  for (std::int64_t k = 0; k < count; ++k) {
    const float* line = source + k * inner;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) largest[c] = std::max(largest[c], line[c]);
  }
  for (std::int64_t first = 0; first < count; first += kSummed) {
    const std::int64_t end = std::min(count, first + kSummed);
    std::fill_n(sum, columns, 0.0f);
    for (std::int64_t k = first; k < end; ++k) {
      const float* line = source + k * inner;
      float* out = result + k * inner;
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) {
        const float shifted = line[c] - largest[c];
        const float value = Exponential(shifted);
        out[c] = log ? shifted : value;
        sum[c] += value;
      }
    }
    for (std::int64_t c = 0; c < columns; ++c) total[c] += sum[c];
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    const auto all = static_cast<float>(total[c]);
    sum[c] = log ? std::log(all) : 1 / all;
  }
  for (std::int64_t k = 0; k < count; ++k) {
    float* out = result + k * inner;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) out[c] = log ? out[c] - sum[c] : out[c] * sum[c];
  }
}

class Softmax final : public OwnKernel {
 public:
  /// Operands: a compact source and a result of the same dimensions; `axis`; the algorithm
  /// "accurate" or "log". Throws std::invalid_argument.
  Softmax(const Description& description, int threads)
      : log_(description.algorithm == "log"), threads_(threads) {
    const Operand& source = description.operands[0];
    const auto rank = static_cast<int>(source.dims.size());
    const bool fits = description.operands.size() == 2 &&
                      source.dims == description.result().dims && description.axis < rank &&
                      (log_ || description.algorithm == "accurate");
    if (!fits) throw std::invalid_argument("the operands of softmax do not fit together");
    for (int d = 0; d < rank; ++d) {
      if (d < description.axis) outer_ *= source.dims[d];
      if (d > description.axis) inner_ *= source.dims[d];
    }
    count_ = source.dims[description.axis];
  }

  void Run(const std::vector<void*>& data) const final {
    const auto* source = static_cast<const float*>(data[0]);
    auto* result = static_cast<float*>(data[1]);
    // Rows, or columns by the block: what is cut into tasks.
    const std::int64_t blocks = inner_ == 1 ? 1 : (inner_ + kColumns - 1) / kColumns;
    const std::int64_t units = outer_ * blocks;
    const std::int64_t elements = outer_ * count_ * inner_;
    const std::int64_t most = std::min(units, elements / kTaskElements);
    const auto tasks =
        static_cast<int>(std::clamp(most, std::int64_t{1}, std::int64_t{4} * threads_));
    threads::Loop(threads_, tasks, [&](int task) {
      const std::int64_t first = units * task / tasks, end = units * (task + 1) / tasks;
      if (inner_ == 1) {
        return Rows(source + first * count_, result + first * count_, end - first, count_, log_);
      }
      for (std::int64_t unit = first; unit < end; ++unit) {
        const std::int64_t column = unit % blocks * kColumns;
        const std::int64_t offset = unit / blocks * count_ * inner_ + column;
        Columns(source + offset, result + offset, std::min(kColumns, inner_ - column), count_,
                inner_, log_);
      }
    });
  }

 private:
  bool log_;
  int threads_;
  std::int64_t outer_ = 1, count_, inner_ = 1;
};

}  // namespace

std::unique_ptr<OwnKernel> MakeSoftmax(const Description& description, int threads) {
  return std::make_unique<Softmax>(description, threads);
}

}  // namespace tvm_sched::onednn
