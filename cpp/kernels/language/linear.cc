// Products with packed weights, and the experts of a mixture, which are made of them.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "kernels/language/kernels.h"

namespace tvm_sched::language {

using runtime::JsonCursor;

namespace {

constexpr std::int64_t kTaskBytes = 128 << 10;  // of weights; fewer are not worth another thread
constexpr int kTasksOfThread = 4;

const float* FloatsOf(const DLTensor* tensor) {
  return reinterpret_cast<const float*>(static_cast<std::byte*>(tensor->data) +
                                        tensor->byte_offset);
}

float* ResultOf(const DLTensor* tensor) { return const_cast<float*>(FloatsOf(tensor)); }

/// A bfloat16 is the upper half of a float32.
float Wide(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void Finish(const Epilogue& epilogue, const float* sums, int rows, std::int64_t first_row,
            std::int64_t column, int columns, float* result, std::int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    float values[kColumns];
    std::memcpy(values, sums + r * kColumns, sizeof values);
    if (epilogue.bias != nullptr) {
      for (int c = 0; c < columns; ++c) values[c] += epilogue.bias[column + c];
    }
    if (epilogue.activation != Activation::kNone) Activate(epilogue.activation, values, columns);
    if (epilogue.cap != 0) {
      for (int c = 0; c < columns; ++c) {
        values[c] = epilogue.cap * std::tanh(values[c] / epilogue.cap);
      }
    }
    const std::int64_t place = (first_row + r) * stride + column;
    if (epilogue.residual != nullptr) {
      for (int c = 0; c < columns; ++c) values[c] += epilogue.residual[place + c];
    }
    std::copy_n(values, columns, result + place);
  }
}

/// Rows quantised once for all tiles of a product.
class QuantizedRows {
 public:
  QuantizedRows(const float* const* rows, std::int64_t count, std::int64_t terms) {
    const std::int64_t groups = (terms + kGroup - 1) / kGroup;
    numbers_.resize(count * groups * kGroup);
    scales_.resize(count * groups);
    sums_.resize(count * groups);
    const auto quantize = [&](int r) {
      Quantize(rows[r], terms, numbers_.data() + r * groups * kGroup, scales_.data() + r * groups,
               sums_.data() + r * groups);
    };
    if (count < 4) {
      for (int r = 0; r < count; ++r) quantize(r);
    } else {
      Loop(static_cast<int>(count), quantize);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      rows_.push_back({numbers_.data() + r * groups * kGroup, scales_.data() + r * groups,
                       sums_.data() + r * groups});
    }
  }
  const QuantizedRow* rows() const { return rows_.data(); }

 private:
  std::vector<std::int8_t> numbers_;
  std::vector<float> scales_;
  std::vector<std::int32_t> sums_;
  std::vector<QuantizedRow> rows_;
};

/// How many tasks share the work of `tiles` tiles of weights with `bytes` bytes each.
int TasksOf(std::int64_t tiles, std::int64_t bytes, std::int64_t rows) {
  const std::int64_t most = std::max<std::int64_t>(1, tiles * bytes * rows / kTaskBytes);
  return static_cast<int>(std::min({most, tiles, std::int64_t{kTasksOfThread} * Threads()}));
}

void RunTasks(int tasks, threads::Callback<int> work) {
  if (tasks == 1) {
    work(0);
  } else {
    Loop(tasks, work);
  }
}

/// Memory of a thread that grows and is kept.
template <typename Number>
Number* Scratch(std::vector<Number>& memory, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(Number);
  if (static_cast<std::int64_t>(memory.size()) < count + kLine) memory.resize(count + kLine);
  const auto place = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (64 - place % 64) % 64 / sizeof(Number);
}

/// A product of many rows on the matrix unit: rows and weights are rounded to bfloat16, sums are
/// float32.
void MatrixProduct(const Weights& weights, const float* const* rows, std::int64_t count,
                   float* result, std::int64_t stride, const Epilogue& epilogue) {
  const std::int64_t tiles = weights.count(), bytes = TileBytes(weights.format, weights.terms);
  const std::int64_t groups = weights.groups(), block = groups * kMatrixTile;
  const std::int64_t blocks = (count + kMatrixRows - 1) / kMatrixRows;
  static thread_local std::vector<std::uint16_t> row_memory;
  std::uint16_t* rounded = Scratch(row_memory, blocks * block);
  const auto round = [&](int b) {
    const std::int64_t first = b * kMatrixRows;
    RoundRows(rows + first, static_cast<int>(std::min<std::int64_t>(kMatrixRows, count - first)),
              weights.terms, rounded + b * block);
  };
  RunTasks(static_cast<int>(blocks), round);
  const std::int64_t pairs = (tiles + 1) / 2;
  const int tasks = TasksOf(pairs, 2 * bytes, count);
  const auto work = [&](int task) {
    static thread_local std::vector<std::uint16_t> tile_memory;
    alignas(64) float sums[4 * kMatrixRows * kColumns];
    const bool widen = weights.format != Format::kBfloat16;
    std::uint16_t* wide = widen ? Scratch(tile_memory, 2 * block) : nullptr;
    const std::int64_t end = pairs * (task + 1) / tasks;
    for (std::int64_t pair = pairs * task / tasks; pair < end; ++pair) {
      const std::uint16_t* from[2] = {};
      const int some_tiles = 2 * pair + 1 < tiles ? 2 : 1;
      for (int t = 0; t < some_tiles; ++t) {
        const std::int64_t tile = 2 * pair + t, beside = tile * groups * kColumns;
        const std::byte* packed = weights.tiles + tile * bytes;
        from[t] = reinterpret_cast<const std::uint16_t*>(packed);
        if (!widen) continue;
        WidenTile(
            weights.format, packed, groups,
            {weights.scales + beside, weights.zeros == nullptr ? nullptr : weights.zeros + beside},
            wide + t * block);
        from[t] = wide + t * block;
      }
      for (std::int64_t b = 0; b < blocks; b += 2) {
        const int some_blocks = b + 1 < blocks ? 2 : 1;
        MatrixTiles(rounded + b * block, some_blocks, groups, from, some_tiles, sums);
        const std::int64_t first = b * kMatrixRows;
        const auto some =
            static_cast<int>(std::min<std::int64_t>(some_blocks * kMatrixRows, count - first));
        for (int t = 0; t < some_tiles; ++t) {
          const std::int64_t column = (2 * pair + t) * kColumns;
          Finish(epilogue, sums + t * 2 * kMatrixRows * kColumns, some, first, column,
                 static_cast<int>(std::min<std::int64_t>(kColumns, weights.columns - column)),
                 result, stride);
        }
      }
    }
    EndMatrix();
  };
  RunTasks(tasks, work);
}

}  // namespace

Weights Weights::Expert(std::int64_t index) const {
  Weights result = *this;
  result.tiles += index * count() * TileBytes(format, terms);
  if (scales != nullptr) result.scales += index * count() * groups() * kColumns;
  if (zeros != nullptr) result.zeros += index * count() * groups() * kColumns;
  return result;
}

BlockTile Weights::Blocks(std::int64_t tile) const {
  const std::int64_t beside = tile * blocks.Count(terms) * kColumns;
  const int scale = blocks.scales == BlockLayout::Scales::kFloat16 ? 2 : 4;
  const int zero = blocks.zeros == BlockLayout::Zeros::kUint8 ? 1 : 4;
  return {reinterpret_cast<const std::uint8_t*>(tiles) + tile * blocks.Bytes(terms),
          block_scales + beside * scale,
          block_zeros == nullptr ? nullptr : block_zeros + beside * zero};
}

float Weights::At(std::int64_t k, std::int64_t c) const {
  const std::int64_t lane = c % kColumns, tile = c / kColumns;
  const std::byte* from = tiles + tile * TileBytes(format, terms);
  if (format == Format::kFloat32) {
    float value;
    std::memcpy(&value, from + 4 * (k * kColumns + lane), sizeof value);
    return value;
  }
  if (format == Format::kBfloat16) {
    std::uint16_t half;
    std::memcpy(&half, from + 2 * ((k / 2 * kColumns + lane) * 2 + k % 2), sizeof half);
    return Wide(half);
  }
  const std::int64_t group = k / kGroup, quad = k % kGroup / 4, place = 4 * lane + k % 4;
  const std::int64_t beside = (tile * groups() + group) * kColumns + lane;
  if (format == Format::kInt8) {
    return Wide(scales[beside]) *
           static_cast<float>(static_cast<std::int8_t>(from[group * 512 + quad * 64 + place]));
  }
  const auto both = std::to_integer<int>(from[group * 256 + quad % 4 * 64 + place]);
  const int number = quad < 4 ? both & 15 : both >> 4;
  const int zero = format == Format::kInt4Zeros ? zeros[beside] : 8;
  return Wide(scales[beside]) * static_cast<float>(number - zero);
}

Format ReadFormat(const JsonCursor& about) {
  return static_cast<Format>(
      about.Field("format").Word({"float32", "bfloat16", "int8", "int4", "int4-zeros"}));
}

Weights ReadWeights(Format format, std::int64_t terms, std::int64_t columns, const Tensors& tensors,
                    std::size_t first) {
  Weights weights;
  weights.format = format;
  weights.terms = terms;
  weights.columns = columns;
  weights.tiles = reinterpret_cast<const std::byte*>(FloatsOf(tensors[first]));
  if (weights.integers()) {
    weights.scales = reinterpret_cast<const std::uint16_t*>(FloatsOf(tensors[first + 1]));
  }
  if (format == Format::kInt4Zeros) {
    weights.zeros = reinterpret_cast<const std::uint8_t*>(FloatsOf(tensors[first + 2]));
  }
  return weights;
}

void Product(const Weights& weights, const float* const* rows, std::int64_t count, float* result,
             std::int64_t stride, const Epilogue& epilogue) {
  if (count == 0) return;
  const bool blocks = weights.format == Format::kBlocks;
  if (count >= kFewestMatrixRows && weights.format != Format::kFloat32 && !blocks &&
      HasMatrixUnit()) {
    MatrixProduct(weights, rows, count, result, stride, epilogue);
    return;
  }
  const bool few = blocks && count <= kMostBlockRows;
  const Format format = blocks ? Format::kFloat32 : weights.format;
  const std::int64_t tiles = weights.count();
  const std::int64_t bytes =
      few ? weights.blocks.Bytes(weights.terms) : TileBytes(format, weights.terms);
  std::optional<QuantizedRows> quantized;
  if (weights.integers()) quantized.emplace(rows, count, weights.terms);
  // Tiles of weights are the outer loop: each is read from memory once, for all rows.
  const int at_once = RowsAtOnce();
  const int width = weights.integers() || few ? 1 : FloatTilesAtOnce(count);
  const std::int64_t steps = (tiles + width - 1) / width;
  const int tasks = TasksOf(steps, width * bytes, count);
  const auto work = [&](int task) {
    static thread_local std::vector<float> tile_memory;
    alignas(64) float sums[2 * kMostRows * kColumns];
    const std::int64_t end = steps * (task + 1) / tasks;
    float* wide = blocks && !few ? Scratch(tile_memory, width * bytes / sizeof(float)) : nullptr;
    for (std::int64_t step = steps * task / tasks; step < end; ++step) {
      const std::int64_t tile = step * width;
      const std::byte* from = weights.tiles + tile * bytes;
      const auto some_tiles = static_cast<int>(std::min<std::int64_t>(width, tiles - tile));
      if (wide != nullptr) {
        for (int t = 0; t < some_tiles; ++t) {
          WidenBlocks(weights.blocks, weights.terms, weights.Blocks(tile + t),
                      wide + t * bytes / sizeof(float));
        }
        from = reinterpret_cast<const std::byte*>(wide);
      }
      const std::int64_t beside = tile * weights.groups() * kColumns;
      for (std::int64_t r = 0; r < count; r += at_once) {
        const auto some = static_cast<int>(std::min<std::int64_t>(at_once, count - r));
        if (weights.integers()) {
          IntegerTile(weights.format, quantized->rows() + r, some, weights.groups(), from,
                      {weights.scales + beside,
                       weights.zeros == nullptr ? nullptr : weights.zeros + beside},
                      sums);
        } else if (few) {
          BlockRows(weights.blocks, rows + r, some, weights.terms, weights.Blocks(tile), sums);
        } else {
          FloatTiles(format, rows + r, some, weights.terms, from, some_tiles, sums);
        }
        for (int t = 0; t < some_tiles; ++t) {
          const std::int64_t column = (tile + t) * kColumns;
          Finish(epilogue, sums + t * kMostRows * kColumns, some, r, column,
                 static_cast<int>(std::min<std::int64_t>(kColumns, weights.columns - column)),
                 result, stride);
        }
      }
    }
  };
  RunTasks(tasks, work);
}

Kernel MakeLinear(const JsonCursor& about) {
  about.AllowFields(
      {"kind", "format", "terms", "columns", "bias", "residual", "activation", "cap"});
  const Format format = ReadFormat(about);
  const std::int64_t terms = about.Field("terms").Int(1, 1 << 30);
  const std::int64_t columns = about.Field("columns").Int(1, 1 << 30);
  const bool bias = about.Field("bias").Bool(), residual = about.Field("residual").Bool();
  const Activation activation = ReadActivation(about);
  const auto cap = static_cast<float>(about.Field("cap").Number());
  return [=](const Tensors& tensors) {
    const Weights weights = ReadWeights(format, terms, columns, tensors, 1);
    std::size_t next = 1 + Weights::Operands(format);
    Epilogue epilogue;
    epilogue.activation = activation;
    epilogue.cap = cap;
    if (bias) epilogue.bias = FloatsOf(tensors[next++]);
    if (residual) epilogue.residual = FloatsOf(tensors[next++]);
    const std::int64_t count = tensors[0]->shape[0];
    std::vector<const float*> rows(count);
    for (std::int64_t r = 0; r < count; ++r) rows[r] = FloatsOf(tensors[0]) + r * terms;
    Product(weights, rows.data(), count, ResultOf(tensors.back()), columns, epilogue);
  };
}

/// Refuse a tensor that has not just as many bytes as the kernel reads or writes.
void ExpectBytes(const DLTensor& tensor, std::int64_t bytes, const char* name) {
  std::int64_t found = tensor.dtype.bits * tensor.dtype.lanes / 8;
  for (int axis = 0; axis < tensor.ndim; ++axis) found *= tensor.shape[axis];
  if (found != bytes) {
    throw std::invalid_argument(std::string("product with packed weights: its ") + name + " have " +
                                std::to_string(found) + " bytes; " + std::to_string(bytes) +
                                " are needed");
  }
}

// Inputs: rows, numbers, scales, zero points, bias of each matrix. Of several matrices, each is
// multiplied by the same rows if they are `shared`, or by rows of its own.
Kernel MakePacked(const JsonCursor& about) {
  about.AllowFields({"kind", "bits", "block", "terms", "columns", "matrices", "shared", "scales",
                     "zeros", "bias"});
  BlockLayout layout;
  layout.bits = static_cast<int>(about.Field("bits").Int(2, 8));
  if (8 % layout.bits != 0) about.Field("bits").Unexpected("2, 4 or 8");
  layout.terms = about.Field("block").Int(1, 1 << 30);
  if (layout.terms * layout.bits % 32 != 0) about.Field("block").Unexpected("whole words");
  layout.scales =
      static_cast<BlockLayout::Scales>(about.Field("scales").Word({"float32", "float16"}));
  layout.zeros =
      static_cast<BlockLayout::Zeros>(about.Field("zeros").Word({"middle", "uint8", "float32"}));
  const std::int64_t terms = about.Field("terms").Int(1, 1 << 30);
  const std::int64_t columns = about.Field("columns").Int(1, 1 << 30);
  const std::int64_t matrices = about.Field("matrices").Int(1, 1 << 20);
  const bool shared = about.Field("shared").Bool(), bias = about.Field("bias").Bool();
  constexpr std::int64_t kFloat = sizeof(float);
  const std::size_t operands =
      4 + (layout.zeros != BlockLayout::Zeros::kMiddle ? 1 : 0) + (bias ? 1 : 0);
  return [=](const Tensors& tensors) {
    if (tensors.size() != operands) {
      throw std::invalid_argument("product with packed weights: it has " +
                                  std::to_string(tensors.size()) + " tensors; " +
                                  std::to_string(operands) + " are needed");
    }
    const auto bytes = [&](std::size_t k) {
      return reinterpret_cast<const std::byte*>(FloatsOf(tensors[k]));
    };
    Weights all;
    all.format = Format::kBlocks;
    all.terms = terms;
    all.columns = columns;
    all.tiles = bytes(1);
    all.blocks = layout;
    all.block_scales = bytes(2);
    std::size_t next = 3;
    if (layout.zeros != BlockLayout::Zeros::kMiddle) all.block_zeros = bytes(next++);
    const float* each_bias = bias ? FloatsOf(tensors[next]) : nullptr;
    std::int64_t count = 1;
    for (int axis = 0; axis < tensors[0]->ndim; ++axis) count *= tensors[0]->shape[axis];
    count /= terms * (shared ? 1 : matrices);
    const std::int64_t each = matrices * all.count() * layout.Count(terms) * kColumns;
    const bool halves = layout.scales == BlockLayout::Scales::kFloat16;
    ExpectBytes(*tensors[0], count * terms * (shared ? 1 : matrices) * kFloat, "rows");
    ExpectBytes(*tensors[1], matrices * all.count() * layout.Bytes(terms), "weights");
    ExpectBytes(*tensors[2], each * (halves ? 2 : kFloat), "scales");
    if (all.block_zeros != nullptr) {
      const bool floats = layout.zeros == BlockLayout::Zeros::kFloat32;
      ExpectBytes(*tensors[3], each * (floats ? kFloat : 1), "zero points");
    }
    if (bias) ExpectBytes(*tensors[next], matrices * columns * kFloat, "biases");
    ExpectBytes(*tensors.back(), matrices * count * columns * kFloat, "results");
    std::vector<const float*> rows(count);
    for (std::int64_t m = 0; m < matrices; ++m) {
      const float* from = FloatsOf(tensors[0]) + (shared ? 0 : m * count * terms);
      for (std::int64_t r = 0; r < count; ++r) rows[r] = from + r * terms;
      const BlockTile own = all.Blocks(m * all.count());
      Weights weights = all;
      weights.tiles = reinterpret_cast<const std::byte*>(own.numbers);
      weights.block_scales = static_cast<const std::byte*>(own.scales);
      weights.block_zeros = static_cast<const std::byte*>(own.zeros);
      Epilogue epilogue;
      if (bias) epilogue.bias = each_bias + m * columns;
      Product(weights, rows.data(), count, ResultOf(tensors.back()) + m * count * columns, columns,
              epilogue);
    }
  };
}

// Inputs: rows, scores of the router, weights of gate and up in one, weights of down, the sum so
// far.
Kernel MakeExperts(const JsonCursor& about) {
  about.AllowFields(
      {"kind", "format", "hidden", "inner", "experts", "chosen", "normalize", "activation"});
  const Format format = ReadFormat(about);
  const std::int64_t hidden = about.Field("hidden").Int(1, 1 << 30);
  const std::int64_t inner = about.Field("inner").Int(1, 1 << 30);
  const std::int64_t experts = about.Field("experts").Int(1, 1 << 16);
  const std::int64_t chosen = about.Field("chosen").Int(1, experts);
  const bool normalize = about.Field("normalize").Bool();
  const Activation activation = ReadActivation(about);
  return [=](const Tensors& tensors) {
    const std::int64_t count = tensors[0]->shape[0];
    const float* source = FloatsOf(tensors[0]);
    const float* scores = FloatsOf(tensors[1]);
    const Weights gate_up = ReadWeights(format, hidden, 2 * inner, tensors, 2);
    const Weights down = ReadWeights(format, inner, hidden, tensors, 2 + Weights::Operands(format));
    const float* before = FloatsOf(tensors[tensors.size() - 2]);
    float* result = ResultOf(tensors.back());
    std::copy_n(before, count * hidden, result);
    struct Share {
      std::int64_t row;
      float weight;
    };
    std::vector<std::vector<Share>> shares(experts);
    std::vector<float> likely(experts);
    std::vector<std::int64_t> order(experts);
    for (std::int64_t r = 0; r < count; ++r) {
      const float* row = scores + r * experts;
      const float largest = *std::max_element(row, row + experts);
      float sum = 0;
      for (std::int64_t e = 0; e < experts; ++e) sum += likely[e] = std::exp(row[e] - largest);
      for (float& each : likely) each /= sum;
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + chosen, order.end(),
                        [&](std::int64_t a, std::int64_t b) {
                          return likely[a] != likely[b] ? likely[a] > likely[b] : a < b;
                        });
      float kept = 0;
      for (std::int64_t k = 0; k < chosen; ++k) kept += likely[order[k]];
      for (std::int64_t k = 0; k < chosen; ++k) {
        shares[order[k]].push_back({r, likely[order[k]] / (normalize ? kept : 1.0f)});
      }
    }
    std::vector<float> opened, gated, closed;
    std::vector<const float*> rows;
    for (std::int64_t e = 0; e < experts; ++e) {
      const auto some = static_cast<std::int64_t>(shares[e].size());
      if (some == 0) continue;
      rows.clear();
      for (const Share& share : shares[e]) rows.push_back(source + share.row * hidden);
      opened.resize(some * 2 * inner);
      gated.resize(some * inner);
      closed.resize(some * hidden);
      Product(gate_up.Expert(e), rows.data(), some, opened.data(), 2 * inner, {});
      for (std::int64_t r = 0; r < some; ++r) {
        const float* gate = opened.data() + r * 2 * inner;
        Gated(activation, gate, gate + inner, gated.data() + r * inner, inner);
        rows[r] = gated.data() + r * inner;
      }
      Product(down.Expert(e), rows.data(), some, closed.data(), hidden, {});
      for (std::int64_t r = 0; r < some; ++r) {
        float* to = result + shares[e][r].row * hidden;
        for (std::int64_t h = 0; h < hidden; ++h) {
          to[h] += shares[e][r].weight * closed[r * hidden + h];
        }
      }
    }
  };
}

}  // namespace tvm_sched::language
