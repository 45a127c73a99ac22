// Normalisation over groups of channels: computes a factor and a summand for each channel.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/onednn/own_kernel.h"
#include "kernels/onednn/vector_math.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

// Numbers whose moments are found in two passes through the first-level cache, in float32; those of
// several such blocks are joined in float64.
constexpr std::int64_t kBlock = 4096;
constexpr std::int64_t kTaskElements = 16 << 10;  // fewer are not worth another thread

/// Roughly the mean of numbers in a row, the sum of their distances from it, and that of the
/// squared distances. A sum of numbers far from 0 rounds; the distances say by how much.
TVM_SCHED_VERSIONS void OfRow(const float* values, std::int64_t count, float* mean, float* rest,
                              float* squares) {
  float sum = 0, off = 0, square = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t k = 0; k < count; ++k) sum += values[k];
  const float middle = sum / static_cast<float>(count);
#pragma omp simd reduction(+ : off, square)
  for (std::int64_t k = 0; k < count; ++k) {
    const float distance = values[k] - middle;
    off += distance;
    square += distance * distance;
  }
  *mean = middle, *rest = off, *squares = square;
}

/// The same of each column of a compact matrix.
TVM_SCHED_VERSIONS void OfColumns(const float* values, std::int64_t rows, std::int64_t columns,
                                  float* mean, float* rest, float* squares) {
  std::fill_n(mean, columns, 0.0f);
  std::fill_n(rest, columns, 0.0f);
  std::fill_n(squares, columns, 0.0f);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* line = values + row * columns;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) mean[c] += line[c];
  }
  const float factor = 1.0f / static_cast<float>(rows);
  for (std::int64_t c = 0; c < columns; ++c) mean[c] *= factor;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* line = values + row * columns;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) {
      const float distance = line[c] - mean[c];
      rest[c] += distance;
      squares[c] += distance * distance;
    }
  }
}

class Moments final : public OwnKernel {
 public:
  /// Operands: a source (batch, groups, channels of a group, places), whose channels or whose
  /// places lie next to each other; scale and shift, a number for each channel; the result (2,
  /// batch, channels): scale / sqrt(variance + epsilon), and shift - mean times that. `numbers`
  /// holds epsilon. Throws std::invalid_argument.
  Moments(const Description& description, int threads) : threads_(threads) {
    using Dims = std::vector<std::int64_t>;
    const std::vector<Operand>& operands = description.operands;
    const auto check = [](bool holds) {
      if (!holds) throw std::invalid_argument("the operands of moments do not fit together");
    };
    check(operands.size() == 4 && operands[0].dims.size() == 4);
    const Dims &dims = operands[0].dims, &strides = operands[0].strides;
    batch_ = dims[0], groups_ = dims[1], each_ = dims[2], places_ = dims[3];
    const std::int64_t channels = groups_ * each_, whole = channels * places_;
    last_ = strides != Dims{whole, each_ * places_, places_, 1};
    check(!last_ || strides == Dims{whole, each_, 1, channels});
    check(operands[1].dims == Dims{channels} && operands[2].dims == Dims{channels});
    check(operands[3].dims == Dims{2, batch_, channels});
    epsilon_ = description.numbers.at(0);
  }

  void Run(const std::vector<void*>& data) const final {
    const auto* source = static_cast<const float*>(data[0]);
    const std::int64_t channels = groups_ * each_;
    const std::int64_t tasks_wanted = std::clamp(batch_ * channels * places_ / kTaskElements,
                                                 std::int64_t{1}, std::int64_t{4} * threads_);
    if (!last_) {
      std::vector<Moment> found(batch_ * channels);
      const std::int64_t tasks = std::min(tasks_wanted, batch_ * channels);
      threads::Loop(threads_, static_cast<int>(tasks), [&](int task) {
        const std::int64_t all = batch_ * channels;
        for (std::int64_t row = all * task / tasks; row < all * (task + 1) / tasks; ++row) {
          for (std::int64_t first = 0; first < places_; first += kBlock) {
            const std::int64_t count = std::min(kBlock, places_ - first);
            float mean, rest, squares;
            OfRow(source + row * places_ + first, count, &mean, &rest, &squares);
            found[row].AddBlock(static_cast<double>(count), mean, rest, squares);
          }
        }
      });
      return Finish(found, 1, static_cast<const float*>(data[1]),
                    static_cast<const float*>(data[2]), static_cast<float*>(data[3]));
    }
    // Each image is cut into parts, whose moments are joined in the end.
    const std::int64_t parts =
        std::clamp((tasks_wanted + batch_ - 1) / batch_, std::int64_t{1}, places_);
    std::vector<Moment> found(batch_ * parts * channels);
    threads::Loop(threads_, static_cast<int>(batch_ * parts), [&](int task) {
      const std::int64_t part = task % parts, image = task / parts;
      const std::int64_t block = std::max(kBlock / channels, std::int64_t{1});
      const std::int64_t end = places_ * (part + 1) / parts;
      std::vector<float> mean(channels), rest(channels), squares(channels);
      Moment* mine = found.data() + task * channels;
      for (std::int64_t row = places_ * part / parts; row < end; row += block) {
        const std::int64_t rows = std::min(block, end - row);
        OfColumns(source + (image * places_ + row) * channels, rows, channels, mean.data(),
                  rest.data(), squares.data());
        for (std::int64_t c = 0; c < channels; ++c) {
          mine[c].AddBlock(static_cast<double>(rows), mean[c], rest[c], squares[c]);
        }
      }
    });
    Finish(found, parts, static_cast<const float*>(data[1]), static_cast<const float*>(data[2]),
           static_cast<float*>(data[3]));
  }

 private:
  /// Of this many numbers: their mean, and the sum of their squared distances from it.
  struct Moment {
    double count = 0, mean = 0, squares = 0;

    void Add(double other_count, double other_mean, double other_squares);
    /// Numbers whose distances from `middle` have the sum `rest`, and their squares `about_middle`.
    void AddBlock(double numbers, double middle, double rest, double about_middle) {
      Add(numbers, middle + rest / numbers, about_middle - rest * rest / numbers);
    }
  };

  void Finish(const std::vector<Moment>& found, std::int64_t parts, const float* scale,
              const float* shift, float* result) const {
    const std::int64_t channels = groups_ * each_;
    for (std::int64_t image = 0; image < batch_; ++image) {
      for (std::int64_t group = 0; group < groups_; ++group) {
        Moment all;
        for (std::int64_t part = 0; part < parts; ++part) {
          const Moment* of = found.data() + (image * parts + part) * channels;
          for (std::int64_t c = group * each_; c < (group + 1) * each_; ++c) {
            all.Add(of[c].count, of[c].mean, of[c].squares);
          }
        }
        const double deviation = std::sqrt(all.squares / all.count + epsilon_);
        for (std::int64_t c = group * each_; c < (group + 1) * each_; ++c) {
          const double factor = scale[c] / deviation;
          result[image * channels + c] = static_cast<float>(factor);
          result[(batch_ + image) * channels + c] =
              static_cast<float>(shift[c] - all.mean * factor);
        }
      }
    }
  }

  int threads_;
  bool last_;  // channels lie next to each other
  std::int64_t batch_, groups_, each_, places_;
  double epsilon_;
};

void Moments::Moment::Add(double other_count, double other_mean, double other_squares) {
  const double total = count + other_count, distance = other_mean - mean;
  mean += distance * other_count / total;
  squares += other_squares + distance * distance * count * other_count / total;
  count = total;
}

}  // namespace

std::unique_ptr<OwnKernel> MakeMoments(const Description& description, int threads) {
  return std::make_unique<Moments>(description, threads);
}

}  // namespace tvm_sched::onednn
