// The description of a kernel, written by Python; docs/formats/kernels.md defines it.
#ifndef TVM_SCHED_KERNELS_ONEDNN_DESCRIPTION_H_
#define TVM_SCHED_KERNELS_ONEDNN_DESCRIPTION_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cores.h"
#include "runtime/json_cursor.h"

namespace tvm_sched::onednn {

enum class DataType { kFloat32, kBfloat16, kInt32, kInt16, kInt8, kUint8 };

/// Of an element.
std::int64_t BytesOf(DataType type);

/// An argument as a kernel sees it: its dimensions may be other than the tensor's. For oneDNN its
/// elements are all of the tensor's; attention may read a part, and elements several times.
struct Operand {
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
  /// The value is a parameter's: it is laid out anew once, and again when parameters change.
  bool parameter = false;
  /// Of the first element in the tensor.
  std::int64_t offset = 0;
  /// Elements of the tensor; 0: as many as the dimensions say.
  std::int64_t within = 0;
  DataType type = DataType::kFloat32;
  /// oneDNN's name of the layout in which it comes, of a parameter that was laid out when the model
  /// was compiled; empty: as the strides say.
  std::string layout{};
  /// Number of the value that the tensor holds, if kernels of the document hand it to each other:
  /// one computes it, and all others that have this number read it after that. -1: it has none.
  int value = -1;

  /// Of the tensor.
  std::int64_t elements() const;
  /// Whether every element that the dimensions and strides name lies in the tensor.
  bool Fits() const;
  /// Of the element at a position in the result, along whose dimensions it may have 1.
  std::int64_t OffsetOf(const std::vector<std::int64_t>& position) const;
};

/// An operation on the result before it is stored: an elementwise function of two numbers, or a
/// binary operation with another argument.
struct PostOperation {
  std::string name;
  float alpha = 0;
  float beta = 0;
  int input = -1;
};

struct Description {
  std::string primitive;
  /// Of every argument; the last is the result.
  std::vector<Operand> operands;
  int bias = -1;
  std::vector<PostOperation> post;
  std::vector<std::int64_t> kernel, strides, dilation, padding_low, padding_high;
  std::string algorithm;
  /// oneDNN's name of the one to take of its implementations; its first where this is empty, or
  /// where it has none of this name here.
  std::string implementation;
  int axis = 0;
  /// Of a local response normalisation, in oneDNN's order; the first also a normalisation's
  /// epsilon.
  std::vector<double> numbers;
  /// What the source's integers stand for 0 with; padding is that number, too.
  std::int32_t source_zero = 0;
  /// The operand that holds that number, of an integer convolution; -1: it is `source_zero`.
  int source_zero_input = -1;
  /// The part of the machine's cores that compute it.
  runtime::Share cores;
  /// Of a kernel whose sizes a call gives: what it has in common with those of similar sizes. An
  /// implementation that is right for one of them counts as right for all.
  std::string family{};

  const Operand& result() const { return operands.back(); }
};

/// Of sizes that implementations treat alike, one: they have loops for whole vectors and blocks of
/// rows, and others for what is left.
inline std::int64_t Representative(std::int64_t size) {
  if (size < 2) return size;
  return size < 16 ? 2 : size % 16 == 0 ? 16 : 17;
}

/// The description of a kernel that takes its sizes from the tensors of each call.
class OpenDescription {
 public:
  using Sizes = std::vector<std::int64_t>;

  /// Throws FormatError.
  explicit OpenDescription(runtime::JsonCursor item);

  /// What its symbols stand for, where `dimension(operand, axis)` is a size of a tensor.
  template <typename Dimension>
  Sizes SizesOf(const Dimension& dimension) const {
    Sizes sizes;
    for (const Symbol& each : symbols_) {
      sizes.push_back(dimension(each.operand, each.axis) - each.less);
    }
    return sizes;
  }
  Description At(const Sizes& sizes) const;
  /// With each symbol 1.
  const Description& example() const { return example_; }
  /// Sizes of each kind that there is, for which the kernel is checked before it is written.
  const std::vector<Sizes>& examples() const { return examples_; }

 private:
  struct Symbol {
    std::size_t operand;
    int axis;
    std::int64_t less;
  };

  runtime::JsonCursor item_;
  std::string text_;
  std::vector<Symbol> symbols_;
  Description example_;
  std::vector<Sizes> examples_;
};

/// What an artifact says of its kernels.
struct Document {
  std::vector<std::pair<std::string, Description>> kernels;  // by name
  std::vector<std::pair<std::string, OpenDescription>> open;
  /// Cores that it was compiled to use; 0: all that there are.
  int threads = 0;
  /// Names of the checks that its primitives passed where it was compiled.
  std::vector<std::string> checked;
};

/// Throws FormatError.
Document ReadDocument(const std::string& json);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_DESCRIPTION_H_
