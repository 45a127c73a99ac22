// Kernels of decoder-only language models on CPUs: what the module of kind "tvm_sched_language"
// calls. Rows are tokens; each has a position and belongs to a sequence, whose number says where
// its keys and values lie. A row with a negative position is padding and changes nothing.
#ifndef TVM_SCHED_KERNELS_LANGUAGE_KERNELS_H_
#define TVM_SCHED_KERNELS_LANGUAGE_KERNELS_H_

#include <dlpack/dlpack.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/language/products.h"
#include "runtime/json_cursor.h"
#include "threads/pool.h"

namespace tvm_sched::language {

enum class Activation { kNone, kSilu, kGelu, kGeluTanh, kRelu };

/// Call body(0) ... body(count - 1) on the threads of the running kernel.
void Loop(int count, threads::Callback<int> body);
/// How many they are.
int Threads();

using Tensors = std::vector<const DLTensor*>;
/// A kernel: its inputs, then its results.
using Kernel = std::function<void(const Tensors&)>;

Kernel MakeEmbedding(const runtime::JsonCursor& about);
Kernel MakeNorm(const runtime::JsonCursor& about);
Kernel MakeLinear(const runtime::JsonCursor& about);
Kernel MakePacked(const runtime::JsonCursor& about);
Kernel MakeExperts(const runtime::JsonCursor& about);
Kernel MakeGate(const runtime::JsonCursor& about);
Kernel MakeStore(const runtime::JsonCursor& about);
Kernel MakeAttention(const runtime::JsonCursor& about);
Kernel MakeRows(const runtime::JsonCursor& about);
Kernel MakeAdd(const runtime::JsonCursor& about);
Kernel MakeJoin(const runtime::JsonCursor& about);

/// Packed weights as an operand: (tiles, ...), then for integers scales, then perhaps zeros.
struct Weights {
  Format format = Format::kFloat32;
  std::int64_t terms = 0, columns = 0;
  const std::byte* tiles = nullptr;
  const std::uint16_t* scales = nullptr;  // bfloat16
  const std::uint8_t* zeros = nullptr;
  // Of kBlocks, in place of the two before.
  BlockLayout blocks;
  const std::byte* block_scales = nullptr;
  const std::byte* block_zeros = nullptr;

  std::int64_t groups() const { return (terms + kGroup - 1) / kGroup; }
  std::int64_t count() const { return (columns + kColumns - 1) / kColumns; }
  /// Whether rows are rounded to integers, too.
  bool integers() const { return format >= Format::kInt8 && format != Format::kBlocks; }
  BlockTile Blocks(std::int64_t tile) const;
  /// Tensors that they take.
  static int Operands(Format format) {
    return format < Format::kInt8 ? 1 : format == Format::kInt4Zeros ? 3 : 2;
  }
  /// Expert number `index` of weights that lie one after the other.
  Weights Expert(std::int64_t index) const;
  /// One number: that of the term `k` in column `c`.
  float At(std::int64_t k, std::int64_t c) const;
};

Format ReadFormat(const runtime::JsonCursor& about);
Weights ReadWeights(Format format, std::int64_t terms, std::int64_t columns, const Tensors& tensors,
                    std::size_t first);
Activation ReadActivation(const runtime::JsonCursor& about);
void Activate(Activation activation, float* values, std::int64_t count);
/// values[k] = activation(gate[k]) * up[k]
void Gated(Activation activation, const float* gate, const float* up, float* values,
           std::int64_t count);

/// What a product does with its sums: result = activation(sums + bias) + residual.
struct Epilogue {
  const float* bias = nullptr;
  const float* residual = nullptr;
  Activation activation = Activation::kNone;
  float cap = 0;  // cap * tanh(x / cap) where it is not 0
};

/// (rows, terms) times packed weights; of `result` and residual, `stride` numbers lie from one row
/// to the next.
void Product(const Weights& weights, const float* const* rows, std::int64_t count, float* result,
             std::int64_t stride, const Epilogue& epilogue);

}  // namespace tvm_sched::language

#endif  // TVM_SCHED_KERNELS_LANGUAGE_KERNELS_H_
