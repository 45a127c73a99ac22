// Sets of small integers, a bit for each: of any size, and of at most 64.
#ifndef TVM_SCHED_SEARCH_BITSET_H_
#define TVM_SCHED_SEARCH_BITSET_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_sched {

/// A set of integers below 64.
using BitSet64 = std::uint64_t;

/// The set that holds `i` alone.
constexpr BitSet64 Bit(std::size_t i) { return BitSet64{1} << i; }
/// The least element of a set that is not empty.
constexpr std::size_t Least(BitSet64 set) {
  return static_cast<std::size_t>(std::countr_zero(set));
}
/// The set without its least element.
constexpr BitSet64 WithoutLeast(BitSet64 set) { return set & (set - 1); }
/// The integers below `count`, which is at most 64.
constexpr BitSet64 FirstBits(std::size_t count) {
  return count == 64 ? ~BitSet64{0} : Bit(count) - 1;
}

/// A set of integers below a limit that is given once.
class BitSet {
 public:
  explicit BitSet(std::size_t limit) : words_((limit + 63) / 64, 0) {}

  bool Has(std::size_t i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  void Add(std::size_t i) { words_[i / 64] |= Bit(i % 64); }

  BitSet& operator|=(const BitSet& other) {
    for (std::size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
    return *this;
  }
  BitSet& operator&=(const BitSet& other) {
    for (std::size_t w = 0; w < words_.size(); ++w) words_[w] &= other.words_[w];
    return *this;
  }
  friend BitSet operator&(BitSet a, const BitSet& b) { return a &= b; }
  bool operator==(const BitSet&) const = default;

  /// Add the elements of `other`, all of which are at most `largest`.
  void AddUpTo(std::size_t largest, const BitSet& other) {
    for (std::size_t w = 0; w <= largest / 64; ++w) words_[w] |= other.words_[w];
  }

  bool Intersects(const BitSet& other) const {
    for (std::size_t w = 0; w < words_.size(); ++w) {
      if (words_[w] & other.words_[w]) return true;
    }
    return false;
  }

  /// Call `visit` with each element, in ascending order.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (std::size_t w = 0; w < words_.size(); ++w) {
      for (BitSet64 word = words_[w]; word != 0; word = WithoutLeast(word)) {
        visit(w * 64 + Least(word));
      }
    }
  }

  /// For unordered containers.
  struct Hash {
    std::size_t operator()(const BitSet& set) const {
      std::uint64_t hash = 0x9e3779b97f4a7c15;
      for (std::uint64_t word : set.words_) {
        hash = (hash ^ word) * 0xff51afd7ed558ccd;
        hash ^= hash >> 32;
      }
      return hash;
    }
  };

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace tvm_sched

#endif  // TVM_SCHED_SEARCH_BITSET_H_
