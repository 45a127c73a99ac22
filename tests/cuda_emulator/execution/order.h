// Random orders that cost little.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_ORDER_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_ORDER_H_

#include <cstdint>
#include <numeric>

namespace cuda_emulator {

/// Visits 0 to n-1 once each, in an order that a random number gives.
class Order {
 public:
  Order(std::uint64_t count, std::uint64_t random) : count_(count), next_(random % count) {
    step_ = 1 + (random >> 20) % count;
    const bool power = (count & (count - 1)) == 0;  // the usual case, without divisions
    if (power) step_ = (step_ | 1) & (count - 1);
    while (!power && std::gcd(step_, count) != 1) step_ = step_ % count + 1;
  }
  std::uint64_t Next() {
    const std::uint64_t result = next_;
    next_ += step_;
    if (next_ >= count_) next_ -= count_;
    return result;
  }

 private:
  std::uint64_t count_, next_, step_ = 1;
};

/// xorshift64*
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 2654435769u + 88172645463325252u) {}
  std::uint64_t Next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 2685821657736338717u;
  }

 private:
  std::uint64_t state_;
};

}  // namespace cuda_emulator

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_ORDER_H_
