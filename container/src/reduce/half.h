// SPDX-License-Identifier: Apache-2.0
// The two 16-bit floating formats as float, and back with one rounding to the
// nearest, ties to even. Branch-free where it counts, so that loops vectorise.
#pragma once

#include <cstdint>
#include <cstring>

namespace smdist {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
struct Float16 {
  uint16_t bits;
};

// The upper half of a float: 1 sign, 8 exponent, 7 fraction bits.
struct Bfloat16 {
  uint16_t bits;
};

inline float to_float(Bfloat16 value) { return float_of(uint32_t{value.bits} << 16); }

inline Bfloat16 to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  const uint32_t quiet_nan = bits | 0x400000;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<uint16_t>((is_nan ? quiet_nan : rounded) >> 16)};
}

// Shifted into a float's place, a float16 has an exponent that is 112 too small;
// a multiplication by 2^112 mends it and normalises denormals on the way.
inline float to_float(Float16 value) {
  const uint32_t sign = (uint32_t{value.bits} & 0x8000) << 16;
  const uint32_t magnitude = (uint32_t{value.bits} & 0x7fff) << 13;
  const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000;
  return float_of(sign | (magnitude >= 0x0f800000 ? special : finite));
}

// Normal results round in integers. For denormal ones, adding 0.5 makes the
// float unit round at 2^-24, which is the unit of a denormal float16.
inline Float16 to_float16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
  uint32_t result = magnitude < 0x38800000 ? denormal : normal;
  result = magnitude >= 0x477ff000 ? 0x7c00 : result;  // from 65520 on: infinity
  result = magnitude > 0x7f800000 ? 0x7e00 : result;   // NaN
  return {static_cast<uint16_t>(sign | result)};
}

}  // namespace smdist
