// Bounds on the magnitudes of the values that kernels of a module hand to each other. While they
// are far from the largest float32, no sum of products is infinite or NaN, so nobody has to look.
#ifndef TVM_SCHED_KERNELS_ONEDNN_VALUE_BOUNDS_H_
#define TVM_SCHED_KERNELS_ONEDNN_VALUE_BOUNDS_H_

#include <atomic>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

/// By the values' numbers (`Operand::value`). Several runs may be under way at once, so a bound is
/// the largest of all runs so far.
class ValueBounds {
 public:
  explicit ValueBounds(std::size_t count) : bounds_(count) {}

  /// `kUnbounded` of a value that no kernel has computed yet, and of -1.
  double Of(int value) const;
  void Raise(int value, double bound);

 private:
  struct Bound {
    std::atomic<double> largest{-1};
  };
  std::vector<Bound> bounds_;
};

/// By the values' numbers: whether a kernel of several threads that needs finite numbers reads it,
/// or reads what is computed from it, so that its bound spares looking at values.
std::vector<bool> BoundsNeeded(const std::vector<std::pair<std::string, Description>>& kernels,
                               int cores);

/// What follows from the magnitudes of a kernel's inputs.
struct Bounds {
  bool sure = false;  // no NaN, nor infinity, comes before an operation that needs finite numbers
  double result = kUnbounded;
};

/// Of the kernel's inputs in their order: a bound on the magnitudes of their elements.
Bounds BoundsOf(const Description& description, const std::vector<double>& inputs);

/// The largest magnitude of an operand's elements; `kUnbounded` if there are NaN or infinities.
double Magnitude(const Operand& operand, const void* data, int threads);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_VALUE_BOUNDS_H_
