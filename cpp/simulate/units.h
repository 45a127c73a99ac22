// Time and bytes as types of their own, so that one is never added to the other.
#ifndef TVM_SCHED_SIMULATE_UNITS_H_
#define TVM_SCHED_SIMULATE_UNITS_H_

#include <compare>
#include <cstdint>
#include <limits>
#include <stdexcept>

namespace tvm_sched::simulate {

/// A whole number of one unit; sums that leave 64 bits throw instead of wrapping round.
template <typename Unit>
struct Quantity {
  std::int64_t count = 0;

  auto operator<=>(const Quantity&) const = default;

  Quantity& operator+=(Quantity other) { return *this = *this + other; }

  friend Quantity operator+(Quantity a, Quantity b) {
    Quantity sum;
    if (__builtin_add_overflow(a.count, b.count, &sum.count)) {
      throw std::overflow_error("a sum of times or sizes exceeds 64 bits");
    }
    return sum;
  }

  friend Quantity operator-(Quantity a) { return Quantity{-a.count}; }
};

/// Integer nanoseconds from the start of the run, or of a duration.
using Nanoseconds = Quantity<struct NanosecondsUnit>;
/// Bytes.
using Bytes = Quantity<struct BytesUnit>;

/// A latency that stands for "cannot run there", and an end that stands for "after the run".
inline constexpr Nanoseconds kNever{std::numeric_limits<std::int64_t>::max()};

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_UNITS_H_
