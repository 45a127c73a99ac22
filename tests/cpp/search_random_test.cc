// The generators give the numbers that their papers and the C++ standard give; sets hold what is
// added.
#include <gtest/gtest.h>

#include <vector>

#include "search/bitset.h"
#include "search/random.h"

namespace tvm_sched {
namespace {

TEST(Random, SplitMix64GivesTheNumbersOfTheReferenceCode) {
  SplitMix64 random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
}

TEST(Random, MersenneTwisterGivesTheNumberThatTheStandardStates) {
  MersenneTwister random(5489);
  for (int i = 1; i < 10000; ++i) random.Next();
  EXPECT_EQ(random.Next(), 9981545732273789042u);
}

TEST(Random, NumbersAreBelowTheirLimits) {
  MersenneTwister random(1);
  SplitMix64 other(1);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LT(random.Unit(), 1);
    EXPECT_GE(random.Unit(), 0);
    EXPECT_LT(random.Below(7), 7u);
    EXPECT_LT(random.ShareOf(7), 7u);
    EXPECT_LT(other.Below(7), 7u);
  }
  EXPECT_FALSE(other.Chance(0));
  EXPECT_TRUE(other.Chance(1));
}

std::vector<std::size_t> ElementsOf(const BitSet& set) {
  std::vector<std::size_t> elements;
  set.ForEach([&](std::size_t i) { elements.push_back(i); });
  return elements;
}

TEST(BitSet, HoldsWhatIsAddedInAscendingOrder) {
  BitSet set(130);
  for (std::size_t i : {129, 0, 64, 63}) set.Add(i);
  EXPECT_EQ(ElementsOf(set), (std::vector<std::size_t>{0, 63, 64, 129}));
  EXPECT_TRUE(set.Has(64));
  EXPECT_FALSE(set.Has(65));
}

TEST(BitSet, UnitesAndIntersects) {
  BitSet a(130), b(130), c(130);
  a.Add(3), a.Add(100);
  b.Add(100), b.Add(129);
  c.Add(4);
  EXPECT_EQ(ElementsOf(a & b), (std::vector<std::size_t>{100}));
  EXPECT_TRUE(a.Intersects(b));
  EXPECT_FALSE(a.Intersects(c));
  c.AddUpTo(100, a);
  EXPECT_EQ(ElementsOf(c), (std::vector<std::size_t>{3, 4, 100}));
  EXPECT_EQ(BitSet::Hash()(a & b), BitSet::Hash()(b & a));
}

TEST(BitSet64, TakesTheLeastElementAway) {
  EXPECT_EQ(Least(Bit(5) | Bit(63)), 5u);
  EXPECT_EQ(WithoutLeast(Bit(5) | Bit(63)), Bit(63));
  EXPECT_EQ(FirstBits(64), ~BitSet64{0});
  EXPECT_EQ(FirstBits(3), 7u);
}

}  // namespace
}  // namespace tvm_sched
