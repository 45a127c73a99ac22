// Random numbers that a seed repeats on every machine and with every standard library.
#ifndef TVM_SCHED_SEARCH_RANDOM_H_
#define TVM_SCHED_SEARCH_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <random>

namespace tvm_sched {

/*! \brief The upper 53 bits as a number in [0, 1): all that a double holds. */
inline double UnitInterval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

/*! \brief splitmix64 (Steele, Lea and Flood, OOPSLA 2014): eight bytes of state and the fastest. */
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /*! \brief A number below `limit`, which is above 0. */
  size_t Below(size_t limit) { return static_cast<size_t>(Next() % limit); }
  /*! \brief True with this probability. */
  bool Chance(double probability) { return UnitInterval(Next()) < probability; }

 private:
  uint64_t state_;
};

/*! \brief The 64-bit Mersenne Twister, whose sequence the C++ standard fixes. */
class MersenneTwister {
 public:
  explicit MersenneTwister(uint64_t seed) : engine_(seed) {}

  uint64_t Next() { return engine_(); }
  /*! \brief Uniform in [0, 1). */
  double Unit() { return UnitInterval(Next()); }
  /*! \brief A number below `limit`, which is above 0, as a remainder. */
  size_t Below(size_t limit) { return static_cast<size_t>(Next() % limit); }
  /*! \brief A number below `limit`, which is above 0, as a share of it: other numbers than `Below`
   * gives for the same seed, without its division. */
  size_t ShareOf(size_t limit) { return static_cast<size_t>(Unit() * static_cast<double>(limit)); }
  /*! \brief True with probability 1/2. */
  bool Coin() { return Next() >> 63; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace tvm_sched

#endif  // TVM_SCHED_SEARCH_RANDOM_H_
