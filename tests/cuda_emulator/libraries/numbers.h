// Element types of NVIDIA's libraries, and tensors as floats.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_NUMBERS_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_NUMBERS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cuda_emulator {

enum class Type { kFloat, kDouble, kHalf, kBfloat16, kInt8, kInt32, kNone };

inline std::size_t BytesOf(Type type) {
  switch (type) {
    case Type::kDouble:
      return 8;
    case Type::kFloat:
    case Type::kInt32:
      return 4;
    case Type::kInt8:
      return 1;
    default:
      return 2;
  }
}

inline float FromBits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline std::uint32_t ToBits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float FromHalf(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half} >> 15 << 31;
  const std::uint32_t magnitude = half & 0x7FFF;
  if (magnitude >= 0x7C00) return FromBits(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
  if (magnitude < 0x400) {  // subnormal
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  return FromBits(sign | ((magnitude << 13) + (112u << 23)));
}

/// Rounds to the nearest, ties to even.
inline std::uint16_t ToHalf(float value) {
  const std::uint32_t bits = ToBits(value), sign = bits >> 31 << 15;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7FFF;
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7C00);
  if (magnitude < 0x1p-14f) {
    return static_cast<std::uint16_t>(
        sign | static_cast<std::uint32_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  const std::uint32_t rest = bits & 0x7FFFFFFF;
  const std::uint32_t rounded = rest + 0xFFF + (rest >> 13 & 1) - (112u << 23);
  return static_cast<std::uint16_t>(sign | rounded >> 13);
}

inline std::uint16_t ToBfloat16(float value) {
  const std::uint32_t bits = ToBits(value);
  if (std::isnan(value)) return 0x7FFF;
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// 10 bits of mantissa, as tensor cores read float32 where TF32 is allowed.
inline float ToTf32(float value) {
  if (!std::isfinite(value)) return value;
  const std::uint32_t bits = ToBits(value);
  return FromBits((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu);
}

inline double Load(const void* data, std::int64_t index, Type type) {
  switch (type) {
    case Type::kFloat:
      return static_cast<const float*>(data)[index];
    case Type::kDouble:
      return static_cast<const double*>(data)[index];
    case Type::kHalf:
      return FromHalf(static_cast<const std::uint16_t*>(data)[index]);
    case Type::kBfloat16:
      return FromBits(std::uint32_t{static_cast<const std::uint16_t*>(data)[index]} << 16);
    case Type::kInt8:
      return static_cast<const std::int8_t*>(data)[index];
    case Type::kInt32:
      return static_cast<const std::int32_t*>(data)[index];
    case Type::kNone:
      break;
  }
  return NAN;
}

inline void Store(void* data, std::int64_t index, Type type, double value) {
  switch (type) {
    case Type::kFloat:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      break;
    case Type::kDouble:
      static_cast<double*>(data)[index] = value;
      break;
    case Type::kHalf:
      static_cast<std::uint16_t*>(data)[index] = ToHalf(static_cast<float>(value));
      break;
    case Type::kBfloat16:
      static_cast<std::uint16_t*>(data)[index] = ToBfloat16(static_cast<float>(value));
      break;
    case Type::kInt8:
      static_cast<std::int8_t*>(data)[index] =
          static_cast<std::int8_t>(std::fmin(127, std::fmax(-128, std::nearbyint(value))));
      break;
    case Type::kInt32:
      static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(value);
      break;
    case Type::kNone:
      break;
  }
}

/// `value` as a number of this type is.
inline double Round(double value, Type type) {
  double stored = 0;
  Store(&stored, 0, type, value);
  return Load(&stored, 0, type);
}

}  // namespace cuda_emulator

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_NUMBERS_H_
