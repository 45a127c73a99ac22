#include "kernels/integers/depthwise.h"

#include <algorithm>
#include <cstring>

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

void BringPairs(const std::uint8_t* from, std::int64_t apart, std::int64_t count,
                std::uint8_t* to) {
  for (; count > 0; --count, from += kColumns, to += 2 * kColumns) {
    const Row one = Load(from), other = Load(from + apart);
    Store(to, Lower(one, other));
    Store(to + kColumns, Upper(one, other));
  }
}

}  // namespace

void BringFours(const std::uint8_t* from, std::int64_t apart, std::int64_t count,
                std::uint8_t* to) {
  for (; count > 0; --count, from += kColumns, to += 4 * kColumns) {
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
  return std::min(kernel, CeilDiv(std::max<std::int64_t>(padding - result * step, 0), apart));
}

std::int64_t Axis::End(std::int64_t result) const {
  const std::int64_t left = size + padding - result * step;
  return std::clamp<std::int64_t>(CeilDiv(left, apart), 0, kernel);
}

/// Results of a line that are computed together, for a tile of channels.
struct Depthwise::Block {
  const Weights& weights;
  const Part& part;
  std::int64_t tile, first, count;       // pixels of the result
  std::int64_t factors, entries, slots;  // of an instruction; of a line; lines
  std::byte *lines, *scratch;
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
  // Neighbours that a window of one place does not read are not brought.
  const std::int64_t line = kCached / (Slots() * kEntry);
  const std::int64_t wanted = std::max(kFewestPixels, (line - pixels_.Reach()) / pixels_.step);
  block_ = CeilDiv(pixels_.out_size, CeilDiv(pixels_.out_size, wanted));
}

std::int64_t Depthwise::Slots() const { return std::min(lines_.Reach(), lines_.size); }

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
  made.sums.assign(tiles * height * kColumns, 0);
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
        made.sums[line * kColumns + column] += value;
      }
    }
  }
  return made;
}

std::size_t Depthwise::ScratchBytes() const {
  const std::int64_t pixels = (block_ - 1) * pixels_.step + pixels_.Reach() + 3 * pixels_.apart;
  const std::int64_t bytes = Whole(pixels * kColumns) + Whole(pixels * 2 * kColumns);
  const std::int64_t places = Whole(lines_.kernel * pixels_.kernel * 8) + Whole(Slots() * 8);
  return static_cast<std::size_t>(Slots() * pixels * kEntry + bytes + places);
}

/// A line of the image: its pixels are copied beside each other, with the padding around them, and
/// then those that an instruction multiplies are brought side by side.
void Depthwise::Bring(const Block& block, std::int64_t line, std::byte* to) const {
  const bool bytes = block.weights.are_bytes;
  const std::int64_t pixels = block.entries + (block.factors - 1) * pixels_.apart;
  const std::uint8_t flipped = bytes && signed_ ? 0x80 : 0;
  auto* copied = reinterpret_cast<std::uint8_t*>(block.scratch);
  const std::int64_t begin = block.first * pixels_.step - pixels_.padding;
  const std::int64_t low = std::clamp<std::int64_t>(-begin, 0, pixels);
  const std::int64_t high = std::clamp<std::int64_t>(pixels_.size - begin, low, pixels);
  const auto padding = static_cast<std::uint8_t>(block.part.zero);
  std::memset(copied, padding ^ flipped, low * kColumns);
  std::memset(copied + high * kColumns, padding ^ flipped, (pixels - high) * kColumns);
  const std::int64_t channel = block.tile * kColumns;
  const std::int64_t place = (line * pixels_.size + begin) * channels_ + channel;
  // Behind the image there may be nothing to read.
  const std::int64_t end = lines_.size * pixels_.size * channels_;
  const std::int64_t readable = std::min(high, CeilDiv(end - kColumns + 1 - place, channels_));
  std::int64_t x = low;
  const std::uint8_t* from = block.part.image + place + low * channels_;
  for (; x < readable; ++x, from += channels_) Store(copied + x * kColumns, Load(from) ^ flipped);
  for (; x < high; ++x, from += channels_) {
    Row row{};
    std::memcpy(&row, from, std::min(kColumns + 0L, channels_ - channel));
    Store(copied + x * kColumns, row ^ flipped);
  }
  const std::int64_t apart = pixels_.apart * kColumns;
  if (bytes) {
    return functions_.bytes->bring_fours(copied, apart, block.entries,
                                         reinterpret_cast<std::uint8_t*>(to));
  }
  std::uint8_t* pairs = copied + Whole(pixels * kColumns);
  BringPairs(copied, apart, block.entries, pairs);
  auto* wide = reinterpret_cast<std::int16_t*>(to);
  const std::int64_t count = block.entries * 2 * kColumns;
  if (signed_) {
    functions_.widen_signed(reinterpret_cast<const std::int8_t*>(pairs), block.part.zero, wide,
                            count);
  } else {
    functions_.widen_unsigned(pairs, block.part.zero, wide, count);
  }
}

void Depthwise::ComputeLine(const Block& block, std::int64_t line, const std::int32_t* start,
                            const Epilogue& epilogue) const {
  // Segments of the window, in bytes behind the line's first entry.
  auto* segments = reinterpret_cast<std::int64_t*>(block.scratch);
  const std::int64_t steps = Steps(block.weights.are_bytes);
  const std::int64_t low = lines_.First(line), high = lines_.End(line);
  int count = 0;
  for (std::int64_t k = low; k < high; ++k) {
    const std::int64_t read = line * lines_.step - lines_.padding + k * lines_.apart;
    for (std::int64_t s = 0; s < steps; ++s) {
      segments[count++] =
          (read % block.slots * block.entries + s * block.factors * pixels_.apart) * kEntry;
    }
  }
  const std::byte* weights =
      block.weights.packed.get() + (block.tile * lines_.kernel + low) * steps * kEntry;
  const auto depthwise =
      block.weights.are_bytes ? functions_.bytes->depthwise : functions_.depthwise;
  const std::int64_t size =
      epilogue.result == Result::kInt32 || epilogue.result == Result::kFloat32 ? 4 : 1;
  const std::int64_t channel = block.tile * kColumns;
  const int columns = static_cast<int>(std::min<std::int64_t>(kColumns, channels_ - channel));
  alignas(64) std::int32_t sums[kMostRows * kColumns];
  for (std::int64_t x = 0; x < block.count; x += kMostRows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kMostRows, block.count - x));
    const Windows windows{block.lines + x * pixels_.step * kEntry, pixels_.step * kEntry, rows};
    depthwise(windows, segments, count, weights, start, sums);
    char* to = block.part.result +
               ((line * pixels_.out_size + block.first + x) * channels_ + channel) * size;
    functions_.finish(epilogue, sums, rows, channel, columns, to, channels_ * size);
  }
}

void Depthwise::Compute(const Weights& weights, const Part& part, const Epilogue& epilogue,
                        std::byte* scratch) const {
  Epilogue rest = epilogue;
  rest.bias = nullptr;  // the sums start with it
  const std::int64_t factors = weights.are_bytes ? kFour : kPair, slots = Slots();
  auto* held = reinterpret_cast<std::int64_t*>(scratch);  // which line of the image is where
  std::byte* lines = scratch + Whole(slots * 8);
  for (std::int64_t tile = part.first_tile; tile < part.end_tile; ++tile) {
    for (std::int64_t first = 0; first < pixels_.out_size; first += block_) {
      const std::int64_t count = std::min(block_, pixels_.out_size - first);
      const std::int64_t last = (Steps(weights.are_bytes) - 1) * factors * pixels_.apart;
      const std::int64_t entries = (count - 1) * pixels_.step + last + 1;
      const Block block{weights, part,    tile,  first, count,
                        factors, entries, slots, lines, lines + slots * entries * kEntry};
      std::fill_n(held, slots, std::int64_t{-1});
      for (std::int64_t y = part.first_line; y < part.end_line; ++y) {
        alignas(64) std::int32_t start[kColumns] = {};
        if (epilogue.bias != nullptr) std::copy_n(epilogue.bias + tile * kColumns, kColumns, start);
        for (std::int64_t k = lines_.First(y); k < lines_.End(y); ++k) {
          const std::int64_t line = y * lines_.step - lines_.padding + k * lines_.apart;
          const std::int64_t slot = line % slots;
          if (held[slot] != line) Bring(block, line, lines + slot * entries * kEntry);
          held[slot] = line;
          if (!weights.are_bytes) continue;
          const std::int32_t* less = weights.sums.data() + (tile * lines_.kernel + k) * kColumns;
          const auto zero = static_cast<std::uint32_t>(part.zero + (signed_ ? 128 : 0));
          for (int c = 0; c < kColumns; ++c) {
            // The sums are within 32 bits, what they are made of need not be.
            start[c] = static_cast<std::int32_t>(static_cast<std::uint32_t>(start[c]) -
                                                 zero * static_cast<std::uint32_t>(less[c]));
          }
        }
        ComputeLine(block, y, start, rest);
      }
    }
  }
}

}  // namespace tvm_sched::integers
