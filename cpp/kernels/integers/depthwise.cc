#include "kernels/integers/depthwise.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace tvm_sched::integers {

namespace {

constexpr std::int64_t kEntry = 64;           // bytes of the factors of a pixel of a tile
constexpr std::int64_t kCached = 32 << 10;    // bytes of entries, which stay in the nearest cache
constexpr std::int64_t kFewestPixels = 16;    // of a block, whose edges are brought twice
constexpr std::int64_t kFour = 4, kPair = 2;  // factors of an instruction that adds products

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t Whole(std::int64_t bytes) { return CeilDiv(bytes, kEntry) * kEntry; }

typedef std::uint8_t Row __attribute__((vector_size(kColumns)));  // a byte of each column

Row Load(const std::uint8_t* from) {
  Row row;
  std::memcpy(&row, from, sizeof row);
  return row;
}
void Store(std::uint8_t* to, Row row) { std::memcpy(to, &row, sizeof row); }

Row Lower(Row a, Row b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
Row Upper(Row a, Row b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}

void BringPairs(const std::uint8_t* from, std::int64_t step, std::int64_t apart, std::int64_t count,
                std::uint8_t* to) {
  for (; count > 0; --count, from += step, to += 2 * kColumns) {
    const Row one = Load(from), other = Load(from + apart);
    Store(to, Lower(one, other));
    Store(to + kColumns, Upper(one, other));
  }
}

}  // namespace

void BringFours(const std::uint8_t* from, std::int64_t step, std::int64_t apart, std::int64_t count,
                std::uint8_t* to) {
  for (; count > 0; --count, from += step, to += 4 * kColumns) {
    const Row even[] = {Load(from), Load(from + 2 * apart)};
    const Row odd[] = {Load(from + apart), Load(from + 3 * apart)};
    const Row low[] = {Lower(even[0], odd[0]), Lower(even[1], odd[1])};
    const Row high[] = {Upper(even[0], odd[0]), Upper(even[1], odd[1])};
    typedef std::uint16_t Pairs __attribute__((vector_size(kColumns)));
    const auto store = [&](int place, Row a, Row b) {
      const auto one = (Pairs)a, other = (Pairs)b;
      Store(to + place, (Row)__builtin_shufflevector(one, other, 0, 8, 1, 9, 2, 10, 3, 11));
      Store(to + place + kColumns,
            (Row)__builtin_shufflevector(one, other, 4, 12, 5, 13, 6, 14, 7, 15));
    };
    store(0, low[0], low[1]);
    store(2 * kColumns, high[0], high[1]);
  }
}

std::int64_t Axis::First(std::int64_t result) const {
  const std::int64_t outside = std::max<std::int64_t>(padding - result * step, 0);
  return std::min(kernel, apart == 1 ? outside : CeilDiv(outside, apart));
}

std::int64_t Axis::End(std::int64_t result) const {
  const std::int64_t left = size + padding - result * step;
  return std::clamp<std::int64_t>(apart == 1 ? left : CeilDiv(left, apart), 0, kernel);
}

/// Pixels of the result's lines that are computed together, for a tile of channels.
struct Depthwise::Block {
  const Weights& weights;
  const Part& part;
  const Epilogue& epilogue;
  std::int64_t tile, first, count;
  std::int64_t factors;         // of an instruction
  std::int64_t every, entries;  // a line has an entry for every so many pixels
  std::byte* lines;
  std::uint8_t* copied;
  std::int64_t* segments;
};

/// Sums of results that lie one behind the other.
struct Depthwise::Sums {
  std::int64_t first = 0;  // pixel of the result
  int count = 0;
  alignas(64) std::int32_t sums[kMostRows * kColumns];
};

Depthwise::Depthwise(const Axis& lines, const Axis& pixels, std::int64_t channels, bool is_signed,
                     const Functions& functions)
    : lines_(lines),
      pixels_(pixels),
      channels_(channels),
      signed_(is_signed),
      functions_(functions) {
  const bool upright =
      pixels.size == 1 && pixels.kernel == 1 && pixels.out_size == 1 && pixels.padding == 0;
  if (upright) std::swap(lines_, pixels_);
  block_ = pixels_.out_size;
  held_ = lines_.size;
  if (held_ * Pixels() * kEntry <= kCached) return;
  held_ = std::min(lines_.Reach(), lines_.size);
  const std::int64_t line = kCached / (held_ * kEntry);
  const std::int64_t wanted = std::max(kFewestPixels, (line - pixels_.Reach()) / pixels_.step);
  block_ = CeilDiv(pixels_.out_size, CeilDiv(pixels_.out_size, wanted));
}

std::int64_t Depthwise::Pixels() const {
  return block_ * pixels_.step + pixels_.Reach() + (kFour - 1) * pixels_.apart;
}

std::int64_t Depthwise::Steps(bool bytes) const {
  return CeilDiv(pixels_.kernel, bytes ? kFour : kPair);
}

Depthwise::Weights Depthwise::LayOut(const std::int16_t* weights) const {
  const std::int64_t tiles = CeilDiv(channels_, kColumns), height = lines_.kernel;
  const std::int64_t width = pixels_.kernel, given = CeilDiv(height * width, 2) * 2;
  Weights made;
  made.are_bytes = functions_.bytes != nullptr &&
                   std::all_of(weights, weights + tiles * given * kColumns,
                               [](std::int16_t each) { return each >= -128 && each <= 127; });
  const std::int64_t factors = made.are_bytes ? kFour : kPair, steps = Steps(made.are_bytes);
  const auto size = static_cast<std::size_t>(tiles * height * steps * kEntry);
  made.packed.reset(static_cast<std::byte*>(::operator new(size, std::align_val_t{64})));
  std::fill_n(made.packed.get(), size, std::byte{0});
  made.sums.assign(tiles * (height + 1) * kColumns, 0);
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    for (std::int64_t place = 0; place < height * width; ++place) {
      const std::int64_t line = tile * height + place / width, x = place % width;
      const std::int64_t entry = (line * steps + x / factors) * kColumns;
      for (std::int64_t column = 0; column < kColumns; ++column) {
        const std::int16_t value = weights[(tile * given + place) * kColumns + column];
        const std::int64_t at = (entry + column) * factors + x % factors;
        if (made.are_bytes) {
          made.packed.get()[at] = static_cast<std::byte>(value);
        } else {
          std::memcpy(made.packed.get() + at * 2, &value, sizeof value);
        }
        made.sums[(line + tile + 1) * kColumns + column] += value;
      }
    }
    std::int32_t* sums = made.sums.data() + tile * (height + 1) * kColumns;
    for (std::int64_t k = kColumns; k < height * kColumns; ++k) sums[k + kColumns] += sums[k];
  }
  return made;
}

std::size_t Depthwise::ScratchBytes() const {
  const std::int64_t copied = held_ * Pixels() + (kFour - 1) * pixels_.apart;
  const std::int64_t places = lines_.kernel * pixels_.kernel + held_;
  return static_cast<std::size_t>(held_ * Pixels() * kEntry + 3 * Whole(copied * kColumns) +
                                  Whole(places * static_cast<std::int64_t>(sizeof(std::int64_t))));
}

/// Lines of the image, one behind the other: their pixels are copied beside each other, into the
/// padding that is there, and then those that an instruction multiplies are brought side by side.
void Depthwise::Bring(const Block& block, std::int64_t line, std::int64_t count) const {
  const bool bytes = block.weights.are_bytes;
  const std::int64_t pixels = block.entries * block.every;
  const std::uint8_t flipped = bytes && signed_ ? 0x80 : 0;
  const std::int64_t begin = block.first * pixels_.step - pixels_.padding;
  const std::int64_t low = std::clamp<std::int64_t>(-begin, 0, pixels);
  const std::int64_t high = std::clamp<std::int64_t>(pixels_.size - begin, low, pixels);
  const std::int64_t channel = block.tile * kColumns;
  // Behind the image there may be nothing to read.
  const std::int64_t end = lines_.size * pixels_.size * channels_;
  for (std::int64_t k = 0; k < count; ++k) {
    const std::int64_t place = ((line + k) * pixels_.size + begin) * channels_ + channel;
    const std::int64_t readable = std::min(high, CeilDiv(end - kColumns + 1 - place, channels_));
    std::uint8_t* to = block.copied + k * pixels * kColumns;
    std::int64_t x = low;
    const std::uint8_t* from = block.part.image + place + low * channels_;
    for (; x < readable; ++x, from += channels_) Store(to + x * kColumns, Load(from) ^ flipped);
    for (; x < high; ++x, from += channels_) {
      Row row{};
      std::memcpy(&row, from, std::min(kColumns + 0L, channels_ - channel));
      Store(to + x * kColumns, row ^ flipped);
    }
  }
  const std::int64_t step = block.every * kColumns, apart = pixels_.apart * kColumns;
  const std::int64_t entries = count * block.entries;
  std::byte* to = block.lines + line % held_ * block.entries * kEntry;
  if (bytes) {
    return functions_.bytes->bring_fours(block.copied, step, apart, entries,
                                         reinterpret_cast<std::uint8_t*>(to));
  }
  std::uint8_t* pairs =
      block.copied + Whole((count * pixels + (kFour - 1) * pixels_.apart) * kColumns);
  BringPairs(block.copied, step, apart, entries, pairs);
  auto* wide = reinterpret_cast<std::int16_t*>(to);
  if (signed_) {
    functions_.widen_signed(reinterpret_cast<const std::int8_t*>(pairs), block.part.zero, wide,
                            entries * 2 * kColumns);
  } else {
    functions_.widen_unsigned(pairs, block.part.zero, wide, entries * 2 * kColumns);
  }
}

/// What the sums of a line start with: the bias, less the zero point times the weights.
void Depthwise::Start(const Block& block, std::int64_t low, std::int64_t high,
                      std::int32_t* start) const {
  const std::int32_t* bias = block.epilogue.bias;
  for (int c = 0; c < kColumns; ++c)
    start[c] = bias == nullptr ? 0 : bias[block.tile * kColumns + c];
  if (!block.weights.are_bytes) return;
  const auto zero = static_cast<std::uint32_t>(block.part.zero + (signed_ ? 128 : 0));
  const std::int32_t* sums =
      block.weights.sums.data() + block.tile * (lines_.kernel + 1) * kColumns;
  for (int c = 0; c < kColumns; ++c) {
    // The sums are within 32 bits, what they are made of need not be.
    const auto all = static_cast<std::uint32_t>(sums[high * kColumns + c]) -
                     static_cast<std::uint32_t>(sums[low * kColumns + c]);
    start[c] = static_cast<std::int32_t>(static_cast<std::uint32_t>(start[c]) - zero * all);
  }
}

/// The places of a window's factors behind its first, if the lines of the image are held in a ring
/// of which the first is at `slot`.
void Depthwise::PlaceSegments(const Block& block, std::int64_t slot, std::int64_t lines) const {
  const std::int64_t steps = Steps(block.weights.are_bytes);
  const std::int64_t apart = block.factors * pixels_.apart / block.every;
  int count = 0;
  for (std::int64_t k = 0; k < lines; ++k, slot += lines_.apart) {
    if (slot >= held_ && held_ < lines_.size) slot -= held_;
    for (std::int64_t s = 0; s < steps; ++s) {
      block.segments[count++] = (slot * block.entries + s * apart) * kEntry;
    }
  }
}

/// A line of the result, whose windows have the lines from `low` to `high` in the image.
void Depthwise::ComputeLine(const Block& block, std::int64_t line, std::int64_t low,
                            std::int64_t high, const std::int32_t* start, Sums& sums) const {
  const std::int64_t steps = Steps(block.weights.are_bytes);
  const int count = static_cast<int>((high - low) * steps);
  const std::byte* lines = block.lines;
  if (count > 0) {
    const std::int64_t first = line * lines_.step - lines_.padding + low * lines_.apart;
    if (held_ == lines_.size) {
      lines += first * block.entries * kEntry;
    } else {
      PlaceSegments(block, first % held_, high - low);
    }
  }
  const std::byte* weights =
      block.weights.packed.get() + (block.tile * lines_.kernel + low) * steps * kEntry;
  const auto depthwise =
      block.weights.are_bytes ? functions_.bytes->depthwise : functions_.depthwise;
  const std::int64_t step = pixels_.step / block.every * kEntry;
  for (std::int64_t x = 0; x < block.count; x += kMostRows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kMostRows, block.count - x));
    const std::int64_t pixel = line * pixels_.out_size + block.first + x;
    if (sums.first + sums.count != pixel || sums.count + rows > kMostRows) {
      Finish(block, sums);
      sums.first = pixel;
    }
    depthwise({lines + x * step, step, rows}, block.segments, count, weights, start,
              sums.sums + sums.count * kColumns);
    sums.count += rows;
  }
}

void Depthwise::Finish(const Block& block, Sums& sums) const {
  if (sums.count == 0) return;
  const Result result = block.epilogue.result;
  const std::int64_t size = result == Result::kInt32 || result == Result::kFloat32 ? 4 : 1;
  const std::int64_t channel = block.tile * kColumns;
  const int columns = static_cast<int>(std::min<std::int64_t>(kColumns, channels_ - channel));
  Epilogue rest = block.epilogue;
  rest.bias = nullptr;  // the sums start with it
  functions_.finish(rest, sums.sums, sums.count, channel, columns,
                    block.part.result + (sums.first * channels_ + channel) * size,
                    channels_ * size);
  sums.count = 0;
}

void Depthwise::Compute(const Weights& weights, const Part& part, const Epilogue& epilogue,
                        std::byte* scratch) const {
  const std::int64_t factors = weights.are_bytes ? kFour : kPair;
  // Where no window begins there are no entries.
  const std::int64_t every = std::gcd(pixels_.step, factors * pixels_.apart);
  const std::int64_t last = (Steps(weights.are_bytes) - 1) * factors * pixels_.apart;
  // The lines that are read, all of which may be held.
  const std::int64_t top = part.first_line * lines_.step - lines_.padding;
  const std::int64_t bottom = (part.end_line - 1) * lines_.step - lines_.padding + lines_.Reach();
  const std::int64_t low = std::clamp<std::int64_t>(top, 0, lines_.size);
  const std::int64_t high = std::clamp<std::int64_t>(bottom, low, lines_.size);
  const bool all = held_ == lines_.size;
  auto* held = reinterpret_cast<std::int64_t*>(scratch);  // which line of the image is where
  std::int64_t* segments = held + held_;
  std::byte* lines = scratch + Whole((held_ + lines_.kernel * pixels_.kernel) * 8);
  auto* copied = reinterpret_cast<std::uint8_t*>(lines + held_ * Pixels() * kEntry);
  const int padding = (part.zero & 0xFF) ^ (weights.are_bytes && signed_ ? 0x80 : 0);
  Sums sums;
  for (std::int64_t tile = part.first_tile; tile < part.end_tile; ++tile) {
    for (std::int64_t first = 0; first < pixels_.out_size; first += block_) {
      const std::int64_t count = std::min(block_, pixels_.out_size - first);
      const std::int64_t pixels =
          (count - 1) * pixels_.step + last + 1 + (factors - 1) * pixels_.apart;
      const Block block{
          weights, part,   epilogue, tile, first, count, factors, every, CeilDiv(pixels, every),
          lines,   copied, segments};
      if (tile == part.first_tile || block_ < pixels_.out_size) {
        const std::int64_t behind = (factors - 1) * pixels_.apart;
        std::memset(copied, padding,
                    ((all ? high - low : 1) * block.entries * every + behind) * kColumns);
      }
      if (all) {
        Bring(block, low, high - low);
        PlaceSegments(block, 0, lines_.kernel);
      }
      std::fill_n(held, held_, std::int64_t{-1});
      alignas(64) std::int32_t start[kColumns];
      std::int64_t first_place = -1, end_place = -1;  // of the window, that `start` is for
      for (std::int64_t y = part.first_line; y < part.end_line; ++y) {
        const std::int64_t begin = lines_.First(y), end = lines_.End(y);
        for (std::int64_t k = begin; k < end && !all; ++k) {
          const std::int64_t line = y * lines_.step - lines_.padding + k * lines_.apart;
          if (held[line % held_] != line) Bring(block, line, 1);
          held[line % held_] = line;
        }
        const std::int64_t inside = std::max(begin, end);  // none may be
        if (begin != first_place || end != end_place) Start(block, begin, inside, start);
        first_place = begin, end_place = end;
        ComputeLine(block, y, begin, inside, start, sums);
      }
      Finish(block, sums);
    }
  }
}

}  // namespace tvm_sched::integers
