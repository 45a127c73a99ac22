// Random numbers that a seed repeats on every machine and with every standard library.
#ifndef TVM_SCHED_SEARCH_RANDOM_H_
#define TVM_SCHED_SEARCH_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <random>

namespace tvm_sched {

/// The upper 53 bits as a number in [0, 1): all that a double holds.
inline double UnitInterval(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

/// splitmix64 (Steele, Lea and Flood, OOPSLA 2014): eight bytes of state and the fastest.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// A number below `limit`, which is above 0.
  std::size_t Below(std::size_t limit) { return static_cast<std::size_t>(Next() % limit); }
  /// True with this probability.
  bool Chance(double probability) { return UnitInterval(Next()) < probability; }

 private:
  std::uint64_t state_;
};

/// The 64-bit Mersenne Twister, whose sequence the C++ standard fixes.
class MersenneTwister {
 public:
  explicit MersenneTwister(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t Next() { return engine_(); }
  /// Uniform in [0, 1).
  double Unit() { return UnitInterval(Next()); }
  /// A number below `limit`, which is above 0, as a remainder.
  std::size_t Below(std::size_t limit) { return static_cast<std::size_t>(Next() % limit); }
  /// A number below `limit`, which is above 0, as a share of it: other numbers than `Below`
  /// gives for the same seed, without its division.
  std::size_t ShareOf(std::size_t limit) {
    return static_cast<std::size_t>(Unit() * static_cast<double>(limit));
  }
  /// True with probability 1/2.
  bool Coin() { return Next() >> 63; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace tvm_sched

#endif  // TVM_SCHED_SEARCH_RANDOM_H_
