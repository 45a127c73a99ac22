// Concatenation of rows: oneDNN copies each piece of a row by itself, which takes longer than the
// copy where rows are as short as the channels of an image.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels/onednn/own_kernel.h"
#include "kernels/onednn/vector_math.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

constexpr std::int64_t kTaskElements = 16 << 10;  // fewer are not worth another thread
constexpr std::int64_t kTileElements = 4 << 10;   // of the result: they stay in the nearest cache
constexpr std::int64_t kLongRow = 64;             // from here on the library's copy is as fast

/// `width` elements of each row. Whole vectors, of which the last may overlap the one before it.
template <int lanes>
inline void CopyVectors(const float* source, float* result, std::int64_t rows, std::int64_t width,
                        std::int64_t stride) {
  using Vector = typename VectorOf<float, lanes>::Type;
  for (std::int64_t row = 0; row < rows; ++row, source += width, result += stride) {
    Vector piece;
    for (std::int64_t k = 0; k < width - lanes; k += lanes) {
      std::memcpy(&piece, source + k, sizeof piece);
      std::memcpy(result + k, &piece, sizeof piece);
    }
    std::memcpy(&piece, source + width - lanes, sizeof piece);
    std::memcpy(result + width - lanes, &piece, sizeof piece);
  }
}

TVM_SCHED_VERSIONS void CopyRows(const float* source, float* result, std::int64_t rows,
                                 std::int64_t width, std::int64_t stride) {
  if (width >= kLongRow) {
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(result + row * stride, source + row * width, width * sizeof(float));
    }
  } else if (width >= 16) {
    CopyVectors<16>(source, result, rows, width, stride);
  } else if (width >= 8) {
    CopyVectors<8>(source, result, rows, width, stride);
  } else if (width >= 4) {
    CopyVectors<4>(source, result, rows, width, stride);
  } else {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t k = 0; k < width; ++k) result[row * stride + k] = source[row * width + k];
    }
  }
}

class Concatenation final : public OwnKernel {
 public:
  /// Operands: compact sources (rows, width) and a result (rows, sum of the widths).
  /// Throws std::invalid_argument.
  Concatenation(const Description& description, int threads) : threads_(threads) {
    const Operand& result = description.result();
    bool fits = description.operands.size() > 1 && result.dims.size() == 2;
    std::int64_t stride = 0;
    for (std::size_t k = 0; fits && k + 1 < description.operands.size(); ++k) {
      const Operand& source = description.operands[k];
      fits = source.dims.size() == 2 && source.dims[0] == result.dims[0];
      if (fits) widths_.push_back(source.dims[1]), stride += source.dims[1];
    }
    if (!fits || stride != result.dims[1]) {
      throw std::invalid_argument("the operands of a concatenation do not fit together");
    }
    rows_ = result.dims[0];
    stride_ = stride;
  }

  void Run(const std::vector<void*>& data) const final {
    // A single row is cut within its sources, several are cut between rows.
    const std::int64_t units = rows_ == 1 ? stride_ : rows_;
    const std::int64_t most = std::min(units, rows_ * stride_ / kTaskElements);
    const auto tasks = static_cast<int>(std::clamp(most, std::int64_t{1}, std::int64_t{threads_}));
    threads::Loop(threads_, tasks, [&](int task) {
      const std::int64_t first = units * task / tasks, end = units * (task + 1) / tasks;
      if (rows_ == 1) return Part(data, first, end);
      const std::int64_t tile =
          std::max(std::int64_t{1}, kTileElements / std::max(stride_, std::int64_t{1}));
      for (std::int64_t row = first; row < end; row += tile)
        Rows(data, row, std::min(tile, end - row));
    });
  }

 private:
  void Rows(const std::vector<void*>& data, std::int64_t first, std::int64_t rows) const {
    auto* result = static_cast<float*>(data.back()) + first * stride_;
    for (std::size_t k = 0; k < widths_.size(); ++k) {
      const auto* source = static_cast<const float*>(data[k]) + first * widths_[k];
      CopyRows(source, result, rows, widths_[k], stride_);
      result += widths_[k];
    }
  }

  /// Elements `first` to `end` of the only row.
  void Part(const std::vector<void*>& data, std::int64_t first, std::int64_t end) const {
    std::int64_t begin = 0;
    for (std::size_t k = 0; k < widths_.size(); begin += widths_[k++]) {
      const std::int64_t from = std::max(first, begin), to = std::min(end, begin + widths_[k]);
      if (from >= to) continue;
      std::memcpy(static_cast<float*>(data.back()) + from,
                  static_cast<const float*>(data[k]) + (from - begin), (to - from) * sizeof(float));
    }
  }

  int threads_;
  std::int64_t rows_ = 0, stride_ = 0;
  std::vector<std::int64_t> widths_;
};

}  // namespace

std::unique_ptr<OwnKernel> MakeConcatenation(const Description& description, int threads) {
  return std::make_unique<Concatenation>(description, threads);
}

}  // namespace tvm_sched::onednn
