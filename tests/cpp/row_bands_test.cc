// Where a convolution is cut into bands of rows: no processor computes here.
#include "kernels/onednn/row_bands.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tvm_sched::onednn {
namespace {

constexpr char kWithBands[] = "jit:avx512_core";

Operand Image(std::int64_t channels, std::int64_t height, std::int64_t width) {
  const std::int64_t row = width * channels;
  return {{1, channels, height, width}, {height * row, 1, row, channels}};
}

/// Square windows of `size`, moved by `stride`, of a picture of three channels; 16 filters.
Description Convolution(std::int64_t height, std::int64_t size, std::int64_t stride,
                        std::int64_t padding) {
  const std::int64_t rows = (height + 2 * padding - size) / stride + 1;
  Description made;
  made.primitive = "convolution";
  Operand weights{{16, 3, size, size}, {3 * size * size, size * size, size, 1}};
  weights.parameter = true;
  made.operands = {Image(3, height, 20), weights,
                   Image(16, rows, (20 + 2 * padding - size) / stride + 1)};
  made.strides = {stride, stride};
  made.dilation = {0, 0};
  made.padding_low = made.padding_high = {padding, padding};
  return made;
}

TEST(RowBands, TwoThreadsByHand) {
  // 9 rows of windows of 3, one row of padding: rows 0..3 read 0..4, and rows 4..8 read 3..8.
  const std::vector<Description> bands = RowBands(Convolution(9, 3, 1, 1), kWithBands, 2);
  ASSERT_EQ(bands.size(), 2);
  const Operand &above = bands[0].operands[0], &below = bands[1].operands[0];
  EXPECT_EQ(above.dims[2], 5);
  EXPECT_EQ(above.offset, 0);
  EXPECT_EQ(below.dims[2], 6);
  EXPECT_EQ(below.offset, 3 * 20 * 3);
  EXPECT_EQ(bands[0].padding_low[0], 1);
  EXPECT_EQ(bands[0].padding_high[0], 0);
  EXPECT_EQ(bands[1].padding_low[0], 0);
  EXPECT_EQ(bands[1].padding_high[0], 1);
  EXPECT_EQ(bands[0].result().dims[2], 4);
  EXPECT_EQ(bands[1].result().dims[2], 5);
  EXPECT_EQ(bands[1].result().offset, 4 * 20 * 16);
}

TEST(RowBands, AlikeBandsOfOpenSizesAreCheckedOnce) {
  const auto families = [](std::int64_t height) {
    Description whole = Convolution(height, 3, 1, 1);
    whole.family = "open";
    std::vector<std::string> found;
    for (const Description& band : RowBands(whole, kWithBands, 2)) found.push_back(band.family);
    return found;
  };
  EXPECT_EQ(families(44), families(50));  // 23 and 26 rows of the source each: more than a block
  EXPECT_NE(families(44), families(32));
  EXPECT_NE(families(44)[0], families(44)[1]);  // padded above, or below
  EXPECT_EQ(RowBands(Convolution(44, 3, 1, 1), kWithBands, 2)[0].family, "");
}

TEST(RowBands, EachBandReadsWhatItsRowsNeed) {
  for (std::int64_t height = 3; height < 14; ++height) {
    for (std::int64_t stride = 1; stride < 4; ++stride) {
      for (int threads = 2; threads < 5; ++threads) {
        const Description whole = Convolution(height, 3, stride, 1);
        const std::vector<Description> bands = RowBands(whole, kWithBands, threads);
        if (bands.empty()) continue;
        ASSERT_EQ(bands.size(), threads);
        std::int64_t row = 0;
        for (const Description& band : bands) {
          const Operand &source = band.operands[0], &result = band.result();
          EXPECT_EQ(result.offset, row * result.strides[2]);
          const std::int64_t first = row * stride - 1;  // in the picture, from its padding on
          EXPECT_EQ(source.offset, (first + band.padding_low[0]) * source.strides[2]);
          const std::int64_t seen = source.dims[2] + band.padding_low[0] + band.padding_high[0];
          EXPECT_EQ(seen, (result.dims[2] - 1) * stride + 3);
          EXPECT_LE(source.offset / source.strides[2] + source.dims[2], height);
          row += result.dims[2];
        }
        EXPECT_EQ(row, whole.result().dims[2]);
      }
    }
  }
}

TEST(RowBands, NoneWhereTheyDoNotHelp) {
  const Description usual = Convolution(9, 3, 1, 1);
  EXPECT_FALSE(RowBands(usual, kWithBands, 2).empty());
  EXPECT_TRUE(RowBands(usual, kWithBands, 1).empty());
  EXPECT_TRUE(RowBands(usual, "brgconv:avx512_core", 2).empty());
  EXPECT_TRUE(RowBands(usual, kWithBands, 10).empty()) << "more threads than rows";
  EXPECT_TRUE(RowBands(Convolution(3, 3, 1, 5), kWithBands, 11).empty()) << "only padding";
  Description added = usual;
  added.post.push_back({"binary_add", 0, 0, 0});
  EXPECT_TRUE(RowBands(added, kWithBands, 2).empty());
}

}  // namespace
}  // namespace tvm_sched::onednn
