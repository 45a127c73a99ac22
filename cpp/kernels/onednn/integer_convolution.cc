// Convolutions and products of 8-bit integers with exact sums, on any processor.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/integers/depthwise.h"
#include "kernels/integers/functions.h"
#include "kernels/onednn/kernel.h"
#include "kernels/onednn/own_kernel.h"
#include "kernels/onednn/packed.h"
#include "kernels/onednn/scratchpad.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

using integers::kColumns;

constexpr std::int64_t kChunkBytes = 64 << 10;     // of widened lines, which stay in the cache
constexpr std::int64_t kFewestPixels = 64;         // of a chunk, to read the weights for
constexpr std::int64_t kTaskProducts = 128 << 10;  // fewer are not worth another thread
constexpr std::int64_t kOverread = 2 * kColumns;   // numbers behind the last line
/// Bytes behind the last line: a segment is filled up to whole tiles, too.
constexpr std::int64_t kByteOverread = 2 * integers::kByteOverread;

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void Check(bool right, const char* what) {
  if (!right) throw std::invalid_argument(std::string("integer_convolution: ") + what);
}

/// An image (N, C, H, W) whose channels lie side by side.
void CheckImage(const Operand& operand) {
  Check(operand.dims.size() == 4, "images have four dimensions");
  const auto& d = operand.dims;
  for (std::int64_t dim : d) Check(dim >= 1 && dim < (std::int64_t{1} << 31), "a dimension");
  const std::vector<std::int64_t> strides{d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]};
  for (int k = 0; k < 4; ++k) {
    Check(d[k] == 1 || operand.strides[k] == strides[k], "channels lie side by side");
  }
  Check(operand.within == 0, "an image is the whole tensor");
}

/// Copy bytes, with the bits of `flipped` flipped.
void CopyBytes(const std::uint8_t* from, std::uint8_t flipped, std::uint8_t* to,
               std::int64_t count) {
  if (flipped == 0) {
    std::copy_n(from, count, to);
    return;
  }
  constexpr std::int64_t kSize = 16;
  typedef std::uint8_t Vector __attribute__((vector_size(kSize)));
  std::int64_t k = 0;
  for (Vector bytes; k + kSize <= count; k += kSize) {
    std::memcpy(&bytes, from + k, kSize);
    bytes ^= flipped;
    std::memcpy(to + k, &bytes, kSize);
  }
  for (; k < count; ++k) to[k] = static_cast<std::uint8_t>(from[k] ^ flipped);
}

/// A depthwise convolution is `integers::Depthwise`'s, others are an implicit product of matrices:
/// a few lines of the image at a time are widened to 16 bits, with the padding around them, and the
/// windows are read in place. Where the processor multiplies bytes the lines stay unsigned bytes,
/// and weights times the zero point are subtracted from the sums.
class IntegerConvolution final : public OwnKernel {
 public:
  /// docs/formats/kernels.md says what the operands are. Throws std::invalid_argument.
  IntegerConvolution(const Description& description, int threads);

  bool LayOut(const std::vector<void*>& data, std::uint64_t generation,
              PackedParameters* packed) final;
  void ReleaseWeights() final { packed_.reset(), depthwise_weights_ = {}, packed_from_ = nullptr; }
  void Run(const std::vector<void*>& data) const final;

 private:
  /// A part of the work: lines `first` to `end` of the result, of all images, and tiles of columns.
  struct Part {
    std::int64_t image, first, end;
    std::int64_t first_panel, end_panel;
  };
  struct Call;

  void ReadPost();
  void Combine(integers::Epilogue& epilogue, std::vector<float>& numbers) const;
  void Arrange(const integers::ByteProducts* bytes);
  void Cut();
  void CutDepthwise(std::int64_t places);
  bool FitsBytes(const void* weights);
  template <typename Weight>
  void LayOutProduct(const Weight* weights, PackedParameters* packed);
  void AddRows(const integers::Rows<std::uint8_t>& rows, std::int32_t* numbers) const;
  Part PartOf(std::int64_t task) const;
  template <typename Number, typename Copy>
  void CopyLines(const Part& part, Number padding, Number* lines, const Copy& copy) const;
  void Widen(const Call& call, const Part& part, std::int16_t* lines) const;
  void Compute(const Call& call, const Part& part) const;
  void ComputeDepthwise(const Call& call, const Part& part) const;
  template <typename Number, typename Product>
  void Multiply(const Call& call, const Part& part, const Number* lines, const std::int64_t* places,
                int most_rows, const Product& product) const;
  /// The zero point of the bytes as they are multiplied.
  std::int32_t ByteZero(std::int32_t zero) const { return source_signed_ ? zero + 128 : zero; }

  Description description_;
  const integers::Functions& functions_;
  int threads_, used_threads_ = 1;
  bool source_signed_, wide_;
  std::optional<integers::Depthwise> depthwise_;
  const integers::ByteProducts* bytes_ = nullptr;  // or pairs of 16 bits are multiplied
  std::int64_t images_, channels_, height_, width_;
  std::int64_t outputs_, out_height_, out_width_;
  std::int64_t groups_, group_channels_, group_outputs_, panels_;  // of a group
  /// Of the widened image: its pixels of a line, from which pixel and in which steps they are
  /// taken.
  std::int64_t line_pixels_, pixel_step_, line_step_, x_step_, y_step_;
  std::int64_t pad_top_, pad_left_, window_height_, dilated_y_;
  std::vector<std::int64_t> segments_;
  std::int64_t length_;  // numbers of a segment
  std::int64_t steps_, segment_weights_;
  std::int64_t lines_, chunks_, tasks_, panel_groups_;  // lines of the result of a chunk
  int factor_ = -1, summand_ = -1, table_ = -1;         // operands
  integers::Epilogue epilogue_;
  // Weights for products of bytes, behind the sums of each column's; kernels of other image sizes
  // share them.
  std::shared_ptr<const Packed> packed_;
  const std::int32_t* weight_sums_ = nullptr;
  const std::int8_t* panel_weights_ = nullptr;
  std::vector<std::int32_t> offsets_;  // of columns whose weights less this are bytes, or empty
  integers::Depthwise::Weights depthwise_weights_;
  const void* packed_from_ = nullptr;
  std::uint64_t packed_at_ = 0;
};

/// What a call hands on to its tasks.
struct IntegerConvolution::Call {
  const void* source;
  const char* weights;
  char* result;
  std::int32_t zero;
  integers::Epilogue epilogue;
  const integers::Depthwise::Weights* depthwise_weights;
};

IntegerConvolution::IntegerConvolution(const Description& description, int threads)
    : description_(description), functions_(integers::ChosenFunctions()), threads_(threads) {
  Check(description.operands.size() >= 3, "there are a source, weights and a result");
  const bool depthwise = description.algorithm == "depthwise";
  const Operand &source = description.operands[0], &weights = description.operands[1];
  const Operand& result = description.result();
  CheckImage(source);
  CheckImage(result);
  Check(source.type == DataType::kInt8 || source.type == DataType::kUint8, "the source's type");
  source_signed_ = source.type == DataType::kInt8;
  wide_ = weights.type == DataType::kInt16;
  Check(wide_ || (weights.type == DataType::kInt8 && !depthwise), "the weights' type");
  for (const auto* list : {&description.kernel, &description.strides, &description.dilation,
                           &description.padding_low, &description.padding_high}) {
    Check(list->size() == 2, "a window has two dimensions");
    for (std::int64_t value : *list) Check(value >= 0 && value < (1 << 20), "a window");
  }
  images_ = source.dims[0], channels_ = source.dims[1];
  height_ = source.dims[2], width_ = source.dims[3];
  outputs_ = result.dims[1], out_height_ = result.dims[2], out_width_ = result.dims[3];
  const std::int64_t kernel_y = description.kernel[0], kernel_x = description.kernel[1];
  const std::int64_t step_y = description.strides[0], step_x = description.strides[1];
  const std::int64_t apart_y = description.dilation[0] + 1, apart_x = description.dilation[1] + 1;
  Check(kernel_y >= 1 && kernel_x >= 1 && step_y >= 1 && step_x >= 1, "a window");
  pad_top_ = description.padding_low[0], pad_left_ = description.padding_low[1];
  const auto fits = [](std::int64_t size, std::int64_t low, std::int64_t high, std::int64_t reach,
                       std::int64_t step, std::int64_t count) {
    return (count - 1) * step + reach <= size + low + high;
  };
  const std::int64_t reach_y = (kernel_y - 1) * apart_y + 1;
  const std::int64_t reach_x = (kernel_x - 1) * apart_x + 1;
  Check(result.dims[0] == images_, "the number of images");
  Check(fits(height_, pad_top_, description.padding_high[0], reach_y, step_y, out_height_) &&
            fits(width_, pad_left_, description.padding_high[1], reach_x, step_x, out_width_),
        "the result's size");

  // Lines and pixels that no window reads are left out where windows are one high or wide.
  y_step_ = kernel_y == 1 ? 1 : step_y, line_step_ = kernel_y == 1 ? step_y : 1;
  x_step_ = kernel_x == 1 ? 1 : step_x, pixel_step_ = kernel_x == 1 ? step_x : 1;
  line_pixels_ = (out_width_ - 1) * x_step_ + reach_x;
  window_height_ = reach_y;

  groups_ = depthwise ? 1 : weights.dims[0];
  Check(groups_ >= 1 && channels_ % groups_ == 0 && outputs_ % groups_ == 0, "the groups");
  Check(!depthwise || outputs_ == channels_, "a depthwise convolution has an output a channel");
  group_channels_ = channels_ / groups_, group_outputs_ = outputs_ / groups_;
  panels_ = CeilDiv(group_outputs_, kColumns);
  const bool merged = groups_ == 1 && apart_x == 1;
  for (std::int64_t y = 0; y < kernel_y; ++y) {
    for (std::int64_t x = 0; x < (merged ? 1 : kernel_x); ++x) {
      segments_.push_back((y * apart_y * line_pixels_ + x * apart_x) * channels_);
    }
  }
  if (depthwise) {
    const std::int64_t places = CeilDiv(kernel_y * kernel_x, 2) * 2;
    Check(
        weights.dims == std::vector<std::int64_t>{panels_, places, kColumns} && weights.within == 0,
        "the shape of the packed weights");
    ReadPost();
    depthwise_.emplace(integers::Axis{height_, out_height_, kernel_y, step_y, apart_y, pad_top_},
                       integers::Axis{width_, out_width_, kernel_x, step_x, apart_x, pad_left_},
                       channels_, source_signed_, functions_);
    CutDepthwise(kernel_y * kernel_x);
    return;
  }
  length_ = merged ? kernel_x * channels_ : group_channels_;
  const std::int64_t pairs = CeilDiv(length_, 2),
                     count = static_cast<std::int64_t>(segments_.size());
  const std::vector<std::int64_t> packed{groups_, panels_, count, pairs, kColumns, 2};
  Check(weights.dims == packed && weights.within == 0, "the shape of the packed weights");
  ReadPost();
  // Whether wider weights are bytes is known once they are laid out.
  Arrange(!wide_ && weights.parameter ? functions_.bytes : nullptr);
}

/// Whether bytes are multiplied, and all that follows from it.
void IntegerConvolution::Arrange(const integers::ByteProducts* bytes) {
  bytes_ = bytes;
  const std::int64_t pairs = CeilDiv(length_, 2);
  steps_ = bytes_ == nullptr ? pairs : bytes_->filled(CeilDiv(pairs, 2));
  const auto count = static_cast<std::int64_t>(segments_.size());
  segment_weights_ = count * (bytes_ != nullptr ? 4 * steps_ : 2 * steps_);
  Cut();
}

/// Whether weights of 16 bits are bytes, those of a column less an offset.
bool IntegerConvolution::FitsBytes(const void* weights) {
  const auto* from = static_cast<const std::int16_t*>(weights);
  constexpr int kLeast = -128, kGreatest = 127;
  const std::int64_t panels = groups_ * panels_;
  const std::int64_t terms = description_.operands[1].elements() / (panels * kColumns);
  constexpr std::int64_t together = 2;  // terms of a column side by side
  offsets_.clear();
  std::vector<std::int32_t> offsets(panels * kColumns);
  for (std::int64_t k = 0; k < panels * kColumns; ++k) {
    const auto* column = from + k / kColumns * terms * kColumns + k % kColumns * together;
    int least = 0, greatest = 0;
    for (std::int64_t term = 0; term < terms; ++term) {
      const int value = column[term / together * together * kColumns + term % together];
      least = std::min(least, value), greatest = std::max(greatest, value);
    }
    if (least >= kLeast && greatest <= kGreatest) continue;
    if (greatest - least > kGreatest - kLeast) return false;
    offsets[k] = least < kLeast ? least - kLeast : greatest - kGreatest;
  }
  if (std::any_of(offsets.begin(), offsets.end(), [](std::int32_t each) { return each != 0; })) {
    offsets_ = std::move(offsets);
  }
  return true;
}

void IntegerConvolution::ReadPost() {
  const auto& operands = description_.operands;
  const auto has_type = [&](int place, DataType type) { return operands[place].type == type; };
  const int last = static_cast<int>(operands.size()) - 1;
  const auto is_row = [&](int place) {
    return place >= 2 && place < last &&
           (operands[place].elements() == 1 || operands[place].elements() == outputs_);
  };
  if (description_.bias >= 0) {
    Check(is_row(description_.bias) && has_type(description_.bias, DataType::kInt32), "the bias");
    Check(operands[description_.bias].elements() == outputs_, "the bias");
  }
  if (description_.source_zero_input >= 0) {
    const int place = description_.source_zero_input;
    Check(is_row(place) && operands[place].elements() == 1 && has_type(place, operands[0].type),
          "the zero point");
  }
  epilogue_.least = -std::numeric_limits<float>::infinity();
  epilogue_.greatest = std::numeric_limits<float>::infinity();
  int done = 0;  // steps come in one order
  for (const PostOperation& post : description_.post) {
    const int step = post.name == "multiply"   ? 1
                     : post.name == "add"      ? 2
                     : post.name == "clip"     ? 3
                     : post.name == "quantize" ? 4
                     : post.name == "table"    ? 5
                                               : 0;
    Check(step > done, "its operations are multiply, add, clip, quantize, table, in this order");
    Check(step != 5 || done == 4, "a table is for quantised results");
    done = step;
    if (step <= 2) {
      Check(is_row(post.input) && has_type(post.input, DataType::kFloat32), "an operand");
      (step == 1 ? factor_ : summand_) = post.input;
    } else if (step == 3) {
      // JSON has no infinities.
      constexpr float kLargest = std::numeric_limits<float>::max();
      if (post.alpha > -kLargest) epilogue_.least = post.alpha;
      if (post.beta < kLargest) epilogue_.greatest = post.beta;
    } else if (step == 5) {
      table_ = post.input;
      Check(table_ >= 2 && table_ < last && operands[table_].elements() == 256 &&
                operands[table_].type == operands[last].type,
            "the table");
    } else {
      Check(post.alpha > 0 && post.beta >= -128 && post.beta <= 255, "scale and zero point");
      epilogue_.divisor = post.alpha, epilogue_.zero = static_cast<std::int32_t>(post.beta);
      // The first step is within a unit in the last place and the second exact (Markstein), if no
      // number on the way is out of range and the divisor's last digits are not all ones.
      int exponent = 0;
      const float fraction = std::frexp(post.alpha, &exponent);
      constexpr int kFar = 60;
      const bool near = exponent > -kFar && exponent < kFar;
      if (near && fraction != std::nextafter(1.0F, 0.0F)) epilogue_.reciprocal = 1 / post.alpha;
    }
  }
  const DataType type = description_.result().type;
  const bool bytes = type == DataType::kInt8 || type == DataType::kUint8;
  Check(bytes == (done >= 4), "results of 8 bits are quantised");
  Check(type != DataType::kInt32 || done == 0, "sums of int32 have no operations");
  epilogue_.result = type == DataType::kInt8    ? integers::Result::kInt8
                     : type == DataType::kUint8 ? integers::Result::kUint8
                     : type == DataType::kInt32 ? integers::Result::kInt32
                                                : integers::Result::kFloat32;
}

/// Factor, summand and divisor as one multiplication and addition, where results are not in doubt:
/// docs/proofs/quantised_results.md.
void IntegerConvolution::Combine(integers::Epilogue& epilogue, std::vector<float>& numbers) const {
  const bool bytes =
      epilogue.result == integers::Result::kInt8 || epilogue.result == integers::Result::kUint8;
  constexpr float kSteepest = 0.5F, kFarthest = 1 << 15;
  constexpr std::int64_t kFewest = 16;  // results of an output, to combine its numbers for
  if (!bytes || epilogue.reciprocal == 0 || epilogue.factor == nullptr) return;
  if (images_ * out_height_ * out_width_ < kFewest) return;
  const std::int64_t padded = groups_ * panels_ * kColumns;
  numbers.resize(2 * padded);
  typedef float Floats __attribute__((vector_size(kColumns * sizeof(float))));
  typedef std::int32_t Whole __attribute__((vector_size(kColumns * sizeof(float))));
  Floats farthest{};
  Whole fits = ~Whole{};
  for (std::int64_t k = 0; k < padded; k += kColumns) {
    Floats steep, far{};
    std::memcpy(&steep, epilogue.factor + k, sizeof steep);
    if (epilogue.summand != nullptr) std::memcpy(&far, epilogue.summand + k, sizeof far);
    steep /= epilogue.divisor, far /= epilogue.divisor;
    std::memcpy(numbers.data() + k, &steep, sizeof steep);
    std::memcpy(numbers.data() + padded + k, &far, sizeof far);
    steep = steep < 0 ? -steep : steep, far = far < 0 ? -far : far;
    fits &= (steep < kSteepest) & (far < kFarthest);  // so NaN does not
    farthest = farthest < far ? far : farthest;
  }
  float greatest = 0;
  for (int k = 0; k < kColumns; ++k) {
    if (fits[k] == 0) return;
    greatest = std::max(greatest, farthest[k]);
  }
  constexpr float kUnit = 1.0F / (1 << 24);
  epilogue.slope = numbers.data(), epilogue.intercept = numbers.data() + padded;
  epilogue.doubt = kUnit * (2600.0F + 7.0F * greatest);
  const int least = epilogue.result == integers::Result::kInt8 ? -128 : 0;
  const auto bound = [&](float value) {
    const float found =
        std::nearbyint(value / epilogue.divisor) + static_cast<float>(epilogue.zero);
    return static_cast<std::int32_t>(
        std::clamp(found, static_cast<float>(least), static_cast<float>(least + 255)));
  };
  epilogue.low = bound(epilogue.least), epilogue.high = bound(epilogue.greatest);
}

void IntegerConvolution::Cut() {
  // Lines of all images are one after the other where no window reaches over lines.
  const std::int64_t line_bytes = line_pixels_ * y_step_ * channels_ * (bytes_ != nullptr ? 1 : 2);
  const std::int64_t products =
      images_ * out_height_ * out_width_ * panels_ * groups_ * segment_weights_ * kColumns;
  const std::int64_t parallel =
      std::min<std::int64_t>(threads_, std::max<std::int64_t>(1, products / kTaskProducts));
  // Enough pixels to read the weights for, and as few lines as lie in the cache.
  const std::int64_t pixels = CeilDiv(kFewestPixels, out_width_);
  std::int64_t lines = std::max(pixels, kChunkBytes / line_bytes);
  lines = std::clamp<std::int64_t>(lines, 1, out_height_);
  std::int64_t chunks = CeilDiv(out_height_, lines);
  if (parallel > 1 && images_ * chunks % parallel != 0 && out_height_ > parallel * pixels) {
    chunks = CeilDiv(chunks, parallel) * parallel;
  }
  lines_ = CeilDiv(out_height_, chunks);
  chunks_ = CeilDiv(out_height_, lines_);
  const std::int64_t all = groups_ * panels_;
  panel_groups_ =
      images_ * chunks_ >= parallel ? 1 : std::min(all, CeilDiv(parallel, images_ * chunks_));
  tasks_ = images_ * chunks_ * panel_groups_;
  used_threads_ = parallel == 1 ? 1 : threads_;
}

/// By tiles of channels, which share nothing; or by lines, some of which are then read by two
/// tasks.
void IntegerConvolution::CutDepthwise(std::int64_t places) {
  const std::int64_t products = images_ * out_height_ * out_width_ * panels_ * kColumns * places;
  const std::int64_t parallel =
      std::min<std::int64_t>(threads_, std::max<std::int64_t>(1, products / kTaskProducts));
  const std::int64_t wanted = CeilDiv(parallel, images_), lines = depthwise_->lines();
  constexpr std::int64_t kEven = 4;  // tiles of a task: one more or less matters little
  const bool by_lines = panels_ % wanted != 0 && panels_ < kEven * wanted && lines > panels_;
  lines_ = by_lines ? CeilDiv(lines, std::min(lines, wanted)) : lines;
  chunks_ = CeilDiv(lines, lines_);
  panel_groups_ = by_lines ? 1 : std::min(panels_, wanted);
  tasks_ = images_ * chunks_ * panel_groups_;
  used_threads_ = parallel == 1 ? 1 : threads_;
}

IntegerConvolution::Part IntegerConvolution::PartOf(std::int64_t task) const {
  const std::int64_t group = task % panel_groups_, rest = task / panel_groups_;
  const std::int64_t first = rest % chunks_ * lines_, all = groups_ * panels_;
  return {rest / chunks_, first,
          std::min(first + lines_, depthwise_ ? depthwise_->lines() : out_height_),
          all * group / panel_groups_, all * (group + 1) / panel_groups_};
}

template <typename Number, typename Copy>
void IntegerConvolution::CopyLines(const Part& part, Number padding, Number* lines,
                                   const Copy& copy) const {
  const std::int64_t count = (part.end - part.first - 1) * y_step_ + window_height_;
  const std::int64_t line_numbers = line_pixels_ * channels_;
  const auto pixels = [&](std::int64_t pixel, Number* to, std::int64_t numbers) {
    copy(pixel * channels_, to, numbers);
  };
  const std::int64_t first_line = part.first * y_step_ * line_step_ - pad_top_;
  const std::int64_t image = part.image * height_ * width_;
  if (pad_top_ == 0 && pad_left_ == 0 && line_step_ == 1 && pixel_step_ == 1 &&
      line_pixels_ == width_ && first_line + count <= height_) {
    return pixels(image + first_line * width_, lines, count * line_numbers);
  }
  for (std::int64_t k = 0; k < count; ++k, lines += line_numbers) {
    const std::int64_t y = first_line + k * line_step_;
    if (y < 0 || y >= height_) {
      std::fill_n(lines, line_numbers, padding);
      continue;
    }
    // Pixels of the padded line that lie in the image.
    const std::int64_t low = std::min(CeilDiv(pad_left_, pixel_step_), line_pixels_);
    const std::int64_t inside = CeilDiv(width_ + pad_left_, pixel_step_);
    const std::int64_t high = std::clamp(inside, low, line_pixels_);
    const std::int64_t start = image + y * width_ - pad_left_;
    std::fill_n(lines, low * channels_, padding);
    if (pixel_step_ == 1) {
      pixels(start + low, lines + low * channels_, (high - low) * channels_);
    } else {
      for (std::int64_t x = low; x < high; ++x) {
        pixels(start + x * pixel_step_, lines + x * channels_, channels_);
      }
    }
    std::fill_n(lines + high * channels_, (line_pixels_ - high) * channels_, padding);
  }
}

void IntegerConvolution::Widen(const Call& call, const Part& part, std::int16_t* lines) const {
  CopyLines(part, std::int16_t{0}, lines,
            [&](std::int64_t from, std::int16_t* to, std::int64_t count) {
              if (source_signed_) {
                functions_.widen_signed(static_cast<const std::int8_t*>(call.source) + from,
                                        call.zero, to, count);
              } else {
                functions_.widen_unsigned(static_cast<const std::uint8_t*>(call.source) + from,
                                          call.zero, to, count);
              }
            });
}

bool IntegerConvolution::LayOut(const std::vector<void*>& data, std::uint64_t generation,
                                PackedParameters* packed) {
  if (data[1] == nullptr || !description_.operands[1].parameter) return false;
  if (packed_from_ == data[1] && packed_at_ == generation) return false;
  packed_from_ = data[1], packed_at_ = generation;
  if (depthwise_) {
    depthwise_weights_ = depthwise_->LayOut(static_cast<const std::int16_t*>(data[1]));
    return true;
  }
  if (wide_ && functions_.bytes != nullptr) {
    Arrange(FitsBytes(data[1]) ? functions_.bytes : nullptr);
  }
  if (bytes_ == nullptr) return false;
  if (wide_) {
    LayOutProduct(static_cast<const std::int16_t*>(data[1]), packed);
  } else {
    LayOutProduct(static_cast<const std::int8_t*>(data[1]), packed);
  }
  return true;
}

template <typename Weight>
void IntegerConvolution::LayOutProduct(const Weight* weights, PackedParameters* packed) {
  const std::int64_t all = groups_ * panels_;
  const auto count = static_cast<std::int64_t>(segments_.size());
  const std::int64_t pairs = description_.operands[1].dims[3];
  // One panel more adds the numbers of a row.
  const std::int64_t sums_size = all * kColumns * static_cast<std::int64_t>(sizeof(std::int32_t));
  const std::int64_t size = sums_size + (all + 1) * segment_weights_ * kColumns;
  const dnnl::memory::desc layout({size}, dnnl::memory::data_type::s8, dnnl::memory::dims{1});
  const dnnl::memory::desc given = LayoutOf(description_.operands[1]);
  packed_.reset();  // first, for those of the former value are as large
  packed_ = packed->Find(weights, given, layout, packed_at_);
  const auto use = [&](const Packed& held) {
    auto* sums = static_cast<std::int32_t*>(held.memory.get_data_handle());
    weight_sums_ = sums;
    panel_weights_ = static_cast<const std::int8_t*>(held.memory.get_data_handle()) + sums_size;
    return sums;
  };
  if (packed_) {
    use(*packed_);
    return;
  }
  auto made = std::make_shared<Packed>();
  made->memory = Allocate(layout, Engine(), &made->owner);
  made->given = given;
  made->generation = packed_at_;
  std::int32_t* sums = use(*made);
  auto* bytes = reinterpret_cast<std::int8_t*>(sums) + sums_size;
  std::fill_n(reinterpret_cast<std::int8_t*>(sums), size, std::int8_t{0});
  const void* source = weights;
  const auto place = [&](std::int64_t panel, std::int64_t segment, std::int64_t term, int column) {
    const std::int64_t four = (panel * count + segment) * steps_ + term / 4;
    return bytes + (four * kColumns + column) * 4 + term % 4;
  };
  for (std::int64_t p = 0; p < all; ++p) {
    for (std::int64_t s = 0; s < count; ++s) {
      for (std::int64_t pair = 0; pair < pairs; ++pair) {
        for (int column = 0; column < kColumns; ++column) {
          const std::int32_t offset = offsets_.empty() ? 0 : offsets_[p * kColumns + column];
          for (std::int64_t term = 2 * pair; term < 2 * pair + 2; ++term, ++weights) {
            if (term >= length_) continue;
            *place(p, s, term, column) = static_cast<std::int8_t>(*weights - offset);
            sums[p * kColumns + column] += *weights;
          }
        }
      }
    }
  }
  for (std::int64_t s = 0; s < count; ++s) {
    for (std::int64_t term = 0; term < length_; ++term) *place(all, s, term, 0) = 1;
  }
  packed_ = made;
  packed->Add(source, packed_);
}

/// The sums of the rows' numbers.
void IntegerConvolution::AddRows(const integers::Rows<std::uint8_t>& rows,
                                 std::int32_t* numbers) const {
  const integers::Terms terms{segments_.data(), static_cast<int>(segments_.size()), steps_};
  alignas(64) std::int32_t sums[integers::kMostRows * kColumns];
  bytes_->product(rows, terms, panel_weights_ + groups_ * panels_ * segment_weights_ * kColumns, 1,
                  sums);
  for (int r = 0; r < rows.count; ++r) numbers[r] = sums[r * kColumns];
}

void IntegerConvolution::ComputeDepthwise(const Call& call, const Part& part) const {
  const std::int64_t size = BytesOf(description_.result().type);
  const auto* source = static_cast<const std::uint8_t*>(call.source);
  depthwise_->Compute(*call.depthwise_weights,
                      {source + part.image * height_ * width_ * channels_,
                       call.result + part.image * out_height_ * out_width_ * outputs_ * size,
                       part.first, part.end, part.first_panel, part.end_panel, call.zero},
                      call.epilogue,
                      static_cast<std::byte*>(Scratchpad(depthwise_->ScratchBytes())));
}

void IntegerConvolution::Compute(const Call& call, const Part& part) const {
  const std::int64_t line_numbers = line_pixels_ * channels_;
  const std::int64_t count = (part.end - part.first - 1) * y_step_ + window_height_;
  const std::int64_t pixels = (part.end - part.first) * out_width_;
  const std::int64_t numbers = count * line_numbers;
  const std::int64_t size = bytes_ != nullptr ? numbers + kByteOverread : 2 * (numbers + kOverread);
  const std::int64_t lines_size = CeilDiv(size, 64) * 64;
  auto* scratch = static_cast<std::byte*>(Scratchpad(static_cast<std::size_t>(
      lines_size + pixels * static_cast<std::int64_t>(sizeof(std::int64_t)))));
  auto* places = reinterpret_cast<std::int64_t*>(scratch + lines_size);
  for (std::int64_t y = 0, place = 0; y < part.end - part.first; ++y) {
    for (std::int64_t x = 0; x < out_width_; ++x) {
      places[place++] = y * y_step_ * line_numbers + x * x_step_ * channels_;
    }
  }
  const integers::Terms terms{segments_.data(), static_cast<int>(segments_.size()), steps_};
  if (bytes_ != nullptr) {
    auto* lines = reinterpret_cast<std::uint8_t*>(scratch);
    const std::uint8_t flipped = source_signed_ ? 0x80 : 0;
    CopyLines(part, static_cast<std::uint8_t>(ByteZero(call.zero)), lines,
              [&](std::int64_t from, std::uint8_t* to, std::int64_t bytes) {
                CopyBytes(static_cast<const std::uint8_t*>(call.source) + from, flipped, to, bytes);
              });
    std::fill_n(lines + numbers, kByteOverread, std::uint8_t{0});
    Multiply(call, part, lines, places, bytes_->rows,
             [&](const integers::Rows<std::uint8_t>& rows, const void* weights, int columns,
                 std::int32_t* sums) {
               bytes_->product(rows, terms, static_cast<const std::int8_t*>(weights), columns,
                               sums);
             });
    return bytes_->end();
  }
  auto* lines = reinterpret_cast<std::int16_t*>(scratch);
  Widen(call, part, lines);
  std::fill_n(lines + numbers, kOverread, std::int16_t{0});
  Multiply(call, part, lines, places, functions_.rows,
           [&](const integers::Rows<std::int16_t>& rows, const void* weights, int columns,
               std::int32_t* sums) {
             if (wide_) {
               functions_.wide_product(rows, terms, static_cast<const std::int16_t*>(weights),
                                       columns, sums);
             } else {
               functions_.product(rows, terms, static_cast<const std::int8_t*>(weights), columns,
                                  sums);
             }
           });
}

template <typename Number, typename Product>
void IntegerConvolution::Multiply(const Call& call, const Part& part, const Number* lines,
                                  const std::int64_t* places, int most_rows,
                                  const Product& product) const {
  const std::int64_t pixels = (part.end - part.first) * out_width_;
  const std::int64_t size = BytesOf(description_.result().type);
  const std::int64_t line = (part.image * out_height_ + part.first) * out_width_;
  const std::int64_t weight_bytes =
      segment_weights_ * kColumns * (wide_ && bytes_ == nullptr ? 2 : 1);
  alignas(64) std::int32_t sums[integers::kMostRows * kColumns];
  std::vector<std::int32_t> row_sums(offsets_.empty() ? 0 : pixels);
  std::int64_t summed_group = -1, summed = 0;  // pixels of a group
  const auto tile = [&](std::int64_t panel, std::int64_t pixel, int rows) {
    const std::int64_t group = panel / panels_, first = panel % panels_ * kColumns;
    const std::int64_t output = group * group_outputs_ + first;
    const std::int64_t channel = group * group_channels_;
    const int columns = static_cast<int>(std::min<std::int64_t>(kColumns, group_outputs_ - first));
    for (int r = 0; r < rows; r += most_rows) {
      product(integers::Rows<Number>{lines + channel, places + pixel + r,
                                     std::min(rows - r, most_rows)},
              call.weights + panel * weight_bytes, columns, sums + r * kColumns);
    }
    if constexpr (std::is_same_v<Number, std::uint8_t>) {
      if (!offsets_.empty()) {
        if (summed_group != group) summed_group = group, summed = 0;
        if (summed <= pixel) {
          for (int r = 0; r < rows; r += most_rows) {
            AddRows({lines + channel, places + pixel + r, std::min(rows - r, most_rows)},
                    row_sums.data() + pixel + r);
          }
          summed = pixel + rows;
        }
        bytes_->add_outer(row_sums.data() + pixel, offsets_.data() + panel * kColumns, rows, sums);
      }
    }
    // Rows of groups that are no whole tiles begin at `panel * kColumns` of the padded numbers.
    functions_.finish(call.epilogue, sums, rows, panel * kColumns, columns,
                      call.result + ((line + pixel) * outputs_ + output) * size, outputs_ * size);
  };
  // Tiles of nearly as many rows each: a small one takes as long as its weights need to be read.
  // Several are finished together.
  const std::int64_t tiles = CeilDiv(pixels, most_rows);
  const auto tile_rows = static_cast<int>(CeilDiv(pixels, tiles));
  const std::int64_t most = integers::kMostRows / tile_rows * tile_rows;
  for (std::int64_t p = part.first_panel; p < part.end_panel; ++p) {
    for (std::int64_t pixel = 0; pixel < pixels; pixel += most) {
      tile(p, pixel, static_cast<int>(std::min<std::int64_t>(most, pixels - pixel)));
    }
  }
}

void IntegerConvolution::Run(const std::vector<void*>& data) const {
  Call call{data[0],
            static_cast<const char*>(data[1]),
            static_cast<char*>(data.back()),
            description_.source_zero,
            epilogue_,
            &depthwise_weights_};
  if (description_.source_zero_input >= 0) {
    const void* zero = data[description_.source_zero_input];
    call.zero = source_signed_ ? *static_cast<const std::int8_t*>(zero)
                               : *static_cast<const std::uint8_t*>(zero);
  }
  if (bytes_ != nullptr) call.weights = reinterpret_cast<const char*>(panel_weights_);
  if (table_ >= 0) call.epilogue.table = static_cast<const std::uint8_t*>(data[table_]);
  // Numbers of the outputs, each group's filled up to whole tiles.
  const std::int64_t padded = groups_ * panels_ * kColumns;
  std::vector<std::int32_t> bias;
  std::vector<float> factor, summand;
  const auto spread = [&](auto& to, int operand, const auto*& result) {
    if (operand < 0) return;
    const auto* from = static_cast<const std::decay_t<decltype(to[0])>*>(data[operand]);
    const bool one = description_.operands[operand].elements() == 1;
    result = from;
    if (!one && padded == outputs_) return;
    to.resize(padded);
    for (std::int64_t group = 0; group < groups_; ++group) {
      auto* at = to.data() + group * panels_ * kColumns;
      one ? std::fill_n(at, group_outputs_, *from)
          : std::copy_n(from + group * group_outputs_, group_outputs_, at);
    }
    result = to.data();
  };
  spread(bias, description_.bias, call.epilogue.bias);
  if (const std::int32_t zero = ByteZero(call.zero); bytes_ != nullptr && zero != 0) {
    if (call.epilogue.bias == nullptr) {
      bias.assign(padded, 0);
    } else if (bias.empty()) {
      bias.assign(call.epilogue.bias, call.epilogue.bias + padded);
    }
    for (std::int64_t k = 0; k < padded; ++k) {
      // The sums are within 32 bits, what they are made of need not be.
      const auto less =
          static_cast<std::uint32_t>(zero) * static_cast<std::uint32_t>(weight_sums_[k]);
      bias[k] = static_cast<std::int32_t>(static_cast<std::uint32_t>(bias[k]) - less);
    }
    call.epilogue.bias = bias.data();
  }
  spread(factor, factor_, call.epilogue.factor);
  spread(summand, summand_, call.epilogue.summand);
  std::vector<float> combined;
  Combine(call.epilogue, combined);
  integers::Depthwise::Weights own;
  if (depthwise_ && !description_.operands[1].parameter) {
    own = depthwise_->LayOut(static_cast<const std::int16_t*>(data[1]));
    call.depthwise_weights = &own;
  }
  threads::Loop(used_threads_, static_cast<int>(tasks_), [&](int task) {
    depthwise_ ? ComputeDepthwise(call, PartOf(task)) : Compute(call, PartOf(task));
  });
}

}  // namespace

std::unique_ptr<OwnKernel> MakeIntegerConvolution(const Description& description, int threads) {
  return std::make_unique<IntegerConvolution>(description, threads);
}

}  // namespace tvm_sched::onednn
