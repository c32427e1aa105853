// SPDX-License-Identifier: Apache-2.0
// Conversion of float16 and bfloat16 to float, and back with rounding to nearest, ties to even. The
// templates work for scalars and vectors: Bits and Float are uint32_t and float, or vectors of them
// with equal lengths.
//
// All functions have internal linkage, because this file is compiled for several instruction sets,
// and the linker must not merge the variants (see kernels.h).
#pragma once

#include <cstdint>
#include <cstring>

namespace smdist {

// Return the value of another type with the same bits.
template <typename To, typename From>
static inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// A bfloat16 is the upper half of a float: 1 sign, 8 exponent, 7 fraction bits.
template <typename Float, typename Bits>
static inline Float float_of_bfloat16(Bits bits) {
  return bit_cast<Float>(bits << 16);
}

template <typename Bits, typename Float>
static inline Bits bfloat16_of_float(Float value) {
  const Bits bits = bit_cast<Bits>(value);
  const Bits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const Bits nan = Bits{} + 0x7fc0u;
  return value == value ? rounded : nan;
}

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits. Shifted to the position of a float's
// fields, its exponent is 112 too small; a multiplication by 2^112 corrects it and normalizes
// denormals.
template <typename Float, typename Bits>
static inline Float float_of_float16(Bits bits) {
  const Bits sign = (bits & 0x8000u) << 16;
  const Bits magnitude = (bits & 0x7fffu) << 13;
  const Float small = bit_cast<Float>(magnitude);
  const Bits finite = bit_cast<Bits>(small * 0x1p112f);
  const Bits special = magnitude | 0x7f800000u;  // infinite, or NaN
  return bit_cast<Float>(sign | (small >= 0x1p-96f ? special : finite));
}

// Normal results are rounded with integer arithmetic. For denormal results, the addition of 0.5
// makes the float unit round at 2^-24, the unit of a denormal float16.
template <typename Bits, typename Float>
static inline Bits float16_of_float(Float value) {
  const Bits bits = bit_cast<Bits>(value);
  const Bits sign = bits >> 16 & 0x8000u;
  const Bits magnitude = bits & 0x7fffffffu;
  const Bits normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const Float absolute = bit_cast<Float>(magnitude);
  const Bits denormal = bit_cast<Bits>(absolute + 0.5f) - 0x3f000000u;
  const Bits infinite = Bits{} + 0x7c00u;
  const Bits nan = Bits{} + 0x7e00u;
  const Bits finite = absolute < 0x1p-14f ? denormal : normal;
  const Bits number = sign | (absolute >= 65520.0f ? infinite : finite);
  return value == value ? number : nan;
}

struct Float16 {
  uint16_t bits;
};

struct Bfloat16 {
  uint16_t bits;
};

static inline float to_float(Float16 value) {
  return float_of_float16<float>(uint32_t{value.bits});
}

static inline float to_float(Bfloat16 value) {
  return float_of_bfloat16<float>(uint32_t{value.bits});
}

static inline Float16 to_float16(float value) {
  return {static_cast<uint16_t>(float16_of_float<uint32_t>(value))};
}

static inline Bfloat16 to_bfloat16(float value) {
  return {static_cast<uint16_t>(bfloat16_of_float<uint32_t>(value))};
}

}  // namespace smdist
