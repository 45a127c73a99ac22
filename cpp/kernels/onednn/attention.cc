// Attention, softmax(scale * query * key^T + mask) * value, a few rows at a time: the scores of all
// rows never exist.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <oneapi/dnnl/dnnl.hpp>
#include <stdexcept>
#include <vector>

#include "kernels/onednn/own_kernel.h"
#include "kernels/onednn/vector_math.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

// Of a block's scores, which stay in caches. More rows in a block let its products lay out the keys
// more seldom: of 4096 keys, 128 rows took 17 % less time a row than 32.
constexpr std::int64_t kScoreBytes = 2 << 20;
constexpr std::int64_t kFewestRows = 16, kMostRows = 128;

TVM_SCHED_VERSIONS void Add(float* values, const float* other, std::int64_t count) {
#pragma omp simd
  for (std::int64_t k = 0; k < count; ++k) values[k] += other[k];
}

/// A matrix in memory: one of its strides is 1.
struct Matrix {
  const float* data;
  std::int64_t row, column;  // strides

  char Transposed() const { return column == 1 ? 'N' : 'T'; }
  std::int64_t Leading() const { return column == 1 ? row : column; }
};

/// result (rows x columns, rows apart by `leading`) = factor * a * b
void Multiply(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t columns,
              std::int64_t inner, float factor, float* result, std::int64_t leading) {
  const dnnl::status status =
      dnnl::sgemm(a.Transposed(), b.Transposed(), rows, columns, inner, factor, a.data, a.Leading(),
                  b.data, b.Leading(), 0.0f, result, leading);
  if (status != dnnl::status::success) throw std::runtime_error("oneDNN's sgemm failed");
}

std::int64_t Offset(const Operand& operand, std::int64_t batch, std::int64_t head) {
  return (operand.dims[0] > 1 ? batch * operand.strides[0] : 0) +
         (operand.dims[1] > 1 ? head * operand.strides[1] : 0);
}

void Check(bool holds) {
  if (!holds) throw std::invalid_argument("the operands of attention do not fit together");
}

bool IsMatrix(const Operand& operand) {
  const std::int64_t row = operand.strides[2], column = operand.strides[3];
  return (column == 1 && row >= operand.dims[3]) || (row == 1 && column >= operand.dims[2]);
}

/// The stride of an axis of extent 1 says nothing: take that of a matrix without gaps.
void MakePlain(Operand* operand) {
  const std::int64_t rows = operand->dims[2], columns = operand->dims[3];
  std::int64_t &row = operand->strides[2], &column = operand->strides[3];
  if (rows == 1) row = column == 1 ? columns : 1;
  if (columns == 1) column = row == 1 ? rows : 1;
}

/// Memory of the calling thread for the scores of a block.
float* Scores(std::int64_t count) {
  thread_local std::vector<float> memory;
  if (memory.size() < static_cast<std::size_t>(count)) memory.resize(count);
  return memory.data();
}

class Attention final : public OwnKernel {
 public:
  /// Operands: query (batch, heads, rows, width), key (batch, heads, keys, width), value (batch,
  /// heads, keys, value width), a mask to be added whose dimensions may be 1 where there are four
  /// inputs, result. `numbers` holds the scale; the algorithm "safe" gives 0 where the mask leaves
  /// no key, "plain" NaN. Throws std::invalid_argument where shapes do not fit.
  Attention(const Description& description, int threads)
      : masked_(description.operands.size() == 5),
        safe_(description.algorithm == "safe"),
        threads_(threads) {
    const std::vector<Operand>& operands = description.operands;
    Check(operands.size() == 4 || masked_);
    Check(safe_ || description.algorithm == "plain");
    for (const Operand& operand : operands) Check(operand.dims.size() == 4);
    query_ = operands[0], key_ = operands[1], value_ = operands[2], result_ = operands.back();
    for (Operand* each : {&query_, &key_, &value_}) MakePlain(each);
    batch_ = query_.dims[0], heads_ = query_.dims[1], rows_ = query_.dims[2],
    width_ = query_.dims[3];
    keys_ = key_.dims[2], value_width_ = value_.dims[3];
    using Dims = std::vector<std::int64_t>;
    Check(key_.dims == Dims{batch_, heads_, keys_, width_});
    Check(value_.dims == Dims{batch_, heads_, keys_, value_width_});
    Check(result_.dims == Dims{batch_, heads_, rows_, value_width_});
    Check(IsMatrix(query_) && IsMatrix(key_) && IsMatrix(value_) && result_.strides[3] == 1);
    if (masked_) {
      mask_ = operands[3];
      for (int d = 0; d < 4; ++d) {
        const std::int64_t full = d == 3 ? keys_ : query_.dims[d];
        Check(mask_.dims[d] == 1 || mask_.dims[d] == full);
      }
      Check(mask_.dims[3] == 1 || mask_.strides[3] == 1);
    }
    scale_ = static_cast<float>(description.numbers.at(0));
    block_ = std::clamp(kScoreBytes / (4 * keys_), kFewestRows, kMostRows);
    // Enough blocks that all threads have work of the same length.
    const std::int64_t wanted = (4 * threads + batch_ * heads_ - 1) / (batch_ * heads_);
    block_ = std::clamp(std::min(block_, (rows_ + wanted - 1) / wanted), std::int64_t{1}, rows_);
  }

  void Run(const std::vector<void*>& data) const final {
    const Data all{static_cast<const float*>(data[0]), static_cast<const float*>(data[1]),
                   static_cast<const float*>(data[2]),
                   masked_ ? static_cast<const float*>(data[3]) : nullptr,
                   static_cast<float*>(data.back())};
    const std::int64_t blocks = (rows_ + block_ - 1) / block_;
    threads::Loop(threads_, static_cast<int>(batch_ * heads_ * blocks), [&](int task) {
      const std::int64_t block = task % blocks, head = task / blocks % heads_;
      const std::int64_t first = block * block_;
      // A loop within oneDNN could let this thread begin another block, whose scores would
      // overwrite these.
      threads::Enter(1, [&] {
        Block(all, task / blocks / heads_, head, first, std::min(block_, rows_ - first));
      });
    });
  }

 private:
  struct Data {
    const float* query;
    const float* key;
    const float* value;
    const float* mask;  // may be null
    float* result;
  };
  /// Rows of one head.
  void Block(const Data& data, std::int64_t batch, std::int64_t head, std::int64_t first,
             std::int64_t rows) const {
    float* scores = Scores(rows * keys_);
    const auto matrix = [&](const Operand& operand, const float* from) {
      return Matrix{from + Offset(operand, batch, head), operand.strides[2], operand.strides[3]};
    };
    Matrix query = matrix(query_, data.query);
    query.data += first * query.row;
    const Matrix key = matrix(key_, data.key);
    Multiply(query, {key.data, key.column, key.row}, rows, keys_, width_, scale_, scores, keys_);
    if (masked_) AddMask(data.mask + Offset(mask_, batch, head), first, rows, scores);
    float* result = data.result + Offset(result_, batch, head) + first * result_.strides[2];
    float factors[kMostRows];
    for (std::int64_t row = 0; row < rows; ++row) {
      float* line = scores + row * keys_;
      const float largest = Largest(line, keys_);
      if (safe_ && largest == -std::numeric_limits<float>::infinity()) {
        // NaN is no key that is left out.
        const bool none = std::none_of(line, line + keys_, [](float x) { return std::isnan(x); });
        if (none) {
          std::fill_n(line, keys_, 0.0f);
          factors[row] = 0;
          continue;
        }
      }
      factors[row] = 1 / Exponentials(line, keys_, largest);
    }
    Multiply({scores, keys_, 1}, matrix(value_, data.value), rows, value_width_, keys_, 1.0f,
             result, result_.strides[2]);
    for (std::int64_t row = 0; row < rows; ++row) {
      Scale(result + row * result_.strides[2], value_width_, factors[row]);
    }
  }

  void AddMask(const float* mask, std::int64_t first, std::int64_t rows, float* scores) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* line = mask + (mask_.dims[2] > 1 ? (first + row) * mask_.strides[2] : 0);
      float* values = scores + row * keys_;
      if (mask_.dims[3] > 1) {
        Add(values, line, keys_);
      } else {
        for (std::int64_t k = 0; k < keys_; ++k) values[k] += *line;
      }
    }
  }

  Operand query_, key_, value_, mask_, result_;
  bool masked_, safe_;
  float scale_;
  int threads_;
  std::int64_t batch_, heads_, rows_, keys_, width_, value_width_;
  std::int64_t block_;  // rows that are computed together
};

}  // namespace

std::unique_ptr<OwnKernel> MakeAttention(const Description& description, int threads) {
  return std::make_unique<Attention>(description, threads);
}

}  // namespace tvm_sched::onednn
