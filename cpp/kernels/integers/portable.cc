// Vectors of 128 bits by the compiler, for processors without an own version.
#include "kernels/integers/functions.h"

namespace tvm_sched::integers {

namespace {

namespace portable {

struct Isa {
  typedef std::int32_t Ints __attribute__((vector_size(16)));
  typedef std::uint32_t Bits __attribute__((vector_size(16)));
  typedef std::int16_t Shorts __attribute__((vector_size(16)));
  typedef std::int16_t Half __attribute__((vector_size(8)));
  typedef float Floats __attribute__((vector_size(16)));
  static constexpr int kLanes = 4, kRows = 2;
  static constexpr bool kSaturates = false;  // StoreBytes

  static Ints Zeros() { return Ints{}; }
  static Ints EachInt(std::int32_t value) { return Ints{} + value; }
  static Floats EachFloat(float value) { return Floats{value, value, value, value}; }
  static Shorts EachShort(std::int16_t value) { return Shorts{} + value; }
  static Shorts EachPair(const std::int16_t* pair) {
    return Shorts{pair[0], pair[1], pair[0], pair[1], pair[0], pair[1], pair[0], pair[1]};
  }
  template <typename Number>
  static Shorts LoadShorts(const Number* from) {
    typedef Number Numbers __attribute__((vector_size(8 * sizeof(Number))));
    return __builtin_convertvector(Load<Numbers>(from), Shorts);
  }
  static void StoreShorts(std::int16_t* to, Shorts value) {
    __builtin_memcpy(to, &value, sizeof value);
  }
  static Ints LoadInts(const std::int32_t* from) { return Load<Ints>(from); }
  static void StoreInts(std::int32_t* to, Ints value) {
    __builtin_memcpy(to, &value, sizeof value);
  }
  static Floats LoadFloats(const float* from) { return Load<Floats>(from); }
  static void StoreFloats(float* to, Floats value) { __builtin_memcpy(to, &value, sizeof value); }

  static Shorts Subtract(Shorts a, Shorts b) { return a - b; }
  static Ints Add(Ints a, Ints b) { return (Ints)((Bits)a + (Bits)b); }
  static Ints Multiply(Shorts a, Shorts b) {
    const Ints even = (Wide(__builtin_shufflevector(a, a, 0, 2, 4, 6)) *
                       Wide(__builtin_shufflevector(b, b, 0, 2, 4, 6)));
    return even + (Wide(__builtin_shufflevector(a, a, 1, 3, 5, 7)) *
                   Wide(__builtin_shufflevector(b, b, 1, 3, 5, 7)));
  }
  static Floats ToFloats(Ints value) { return __builtin_convertvector(value, Floats); }
  /// NaN stays.
  static Floats Bounded(Floats value, float least, float greatest) {
    const Floats low = EachFloat(least), high = EachFloat(greatest);
    value = value < low ? low : value;
    return value > high ? high : value;
  }
  /// Of numbers below 2^22.
  static Floats Quotient(Floats value, const Epilogue& epilogue, int) {
    return value / EachFloat(epilogue.divisor);
  }
  static Ints Rounded(Floats value) {
    constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    return __builtin_convertvector((value + kWhole) - kWhole, Ints);
  }
  static void StoreBytes(void* to, const Ints (&values)[4], bool) {
    auto* bytes = static_cast<unsigned char*>(to);
    for (int k = 0; k < kColumns; ++k) bytes[k] = static_cast<unsigned char>(values[k / 4][k % 4]);
  }
  /// Both rows may be the same.
  static void LookUp(const std::uint8_t* table, std::uint8_t* one, std::uint8_t* other) {
    for (int k = 0; k < kColumns; ++k) {
      const std::uint8_t first = table[one[k]], second = table[other[k]];
      one[k] = first, other[k] = second;
    }
  }

 private:
  template <typename Vector>
  static Vector Load(const void* from) {
    Vector value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  }
  static Ints Wide(Half value) { return __builtin_convertvector(value, Ints); }
};

#include "kernels/integers/loops.h"

}  // namespace portable

}  // namespace

const Functions kPortable = portable::kFunctions;

}  // namespace tvm_sched::integers
