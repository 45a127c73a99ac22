// What oneDNN's kernels are compared with: each element of a result by itself, by definition.
#ifndef TVM_SCHED_KERNELS_ONEDNN_PLAIN_VALUES_H_
#define TVM_SCHED_KERNELS_ONEDNN_PLAIN_VALUES_H_

#include <cstdint>
#include <vector>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

class PlainValues {
 public:
  /// `inputs`: the address of each input as float32, laid out as its operand's strides say. They
  /// and the description must outlive this object.
  PlainValues(const Description& description, std::vector<const float*> inputs);

  struct Value {
    double value;
    /// How far right implementations may be from it: float32 rounds, approximations of functions
    /// have an error of their own, and a function may be steep.
    double tolerance;
  };

  /// Of an element of the result. Throws std::invalid_argument if oneDNN is not asked for such a
  /// primitive.
  Value At(const std::vector<std::int64_t>& position) const;

  /// Elements of the source that an element of the result is computed from, at most.
  std::int64_t terms() const;

 private:
  double Sum(const std::vector<std::int64_t>& position) const;
  double Window(const std::vector<std::int64_t>& position) const;
  double Average(const std::vector<std::int64_t>& position) const;
  double Product(const std::vector<std::int64_t>& position) const;
  double LocalResponse(const std::vector<std::int64_t>& position) const;
  double LayerNormalization(const std::vector<std::int64_t>& position) const;

  const Description& d_;
  std::vector<const float*> inputs_;
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_PLAIN_VALUES_H_
