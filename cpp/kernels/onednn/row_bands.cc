#include "kernels/onednn/row_bands.h"

#include <algorithm>
#include <cstdint>

namespace tvm_sched::onednn {

namespace {

constexpr std::int64_t kFewChannels = 4;
constexpr int kRows = 2;  // dimension of an image's rows: (batch, channels, rows, columns)

/// Of one image, channels last, and all of the tensor.
bool IsImage(const Operand& operand) {
  return operand.dims.size() == 4 && operand.dims[0] == 1 && operand.strides[1] == 1 &&
         operand.within == 0 && operand.type == DataType::kFloat32;
}

/// Rows [begin, end) of an image. With a batch of 1 its stride is free; oneDNN knows a layout by
/// that of a compact tensor.
void Cut(Operand* operand, std::int64_t begin, std::int64_t end) {
  operand->offset += begin * operand->strides[kRows];
  operand->dims[kRows] = end - begin;
  operand->strides[0] = (end - begin) * operand->strides[kRows];
}

}  // namespace

std::vector<Description> RowBands(const Description& description, const std::string& implementation,
                                  int threads) {
  if (description.primitive != "convolution" || implementation != "jit:avx512_core") return {};
  const Operand& source = description.operands[0];
  const Operand& weights = description.operands[1];
  const auto elementwise = [](const PostOperation& post) { return post.input < 0; };
  const bool fits = IsImage(source) && IsImage(description.result()) &&
                    source.dims[1] <= kFewChannels && !source.parameter &&
                    weights.dims.size() == 4 && description.source_zero == 0 &&
                    description.strides.size() == 2 && description.dilation.size() == 2 &&
                    description.padding_low.size() == 2 && description.padding_high.size() == 2 &&
                    std::all_of(description.post.begin(), description.post.end(), elementwise);
  if (!fits) return {};
  const std::int64_t height = source.dims[kRows], rows = description.result().dims[kRows];
  const std::int64_t window = (weights.dims[kRows] - 1) * (description.dilation[0] + 1) + 1;
  std::vector<Description> bands;
  for (int band = 0; band < threads && threads > 1; ++band) {
    const std::int64_t first = rows * band / threads, last = rows * (band + 1) / threads;
    const std::int64_t begin = first * description.strides[0] - description.padding_low[0];
    const std::int64_t end =
        (last - 1) * description.strides[0] - description.padding_low[0] + window;
    const std::int64_t low = std::max<std::int64_t>(0, -begin);
    const std::int64_t high = std::max<std::int64_t>(0, end - height);
    if (first == last || begin + low >= end - high) return {};  // one would lie in the padding
    Description part = description;
    part.implementation.clear();
    if (!part.family.empty()) {
      part.family += ", a band";
      for (const std::int64_t each : {end - high - begin - low, last - first}) {
        part.family += ' ' + std::to_string(Representative(each));
      }
      part.family += ", padded " + std::to_string(low) + ' ' + std::to_string(high);
    }
    part.padding_low[0] = low, part.padding_high[0] = high;
    Cut(&part.operands.front(), begin + low, end - high);
    Cut(&part.operands.back(), first, last);
    bands.push_back(std::move(part));
  }
  return bands;
}

}  // namespace tvm_sched::onednn
