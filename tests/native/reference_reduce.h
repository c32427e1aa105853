// SPDX-License-Identifier: Apache-2.0
// Reference implementation of reduce(), one element at a time, which every instruction set must
// match bit for bit; and test data with difficult numbers.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "check.h"
#include "reduce/half_precision.h"
#include "reduce/kernels.h"

namespace smdist::testing {

using Bytes = std::vector<uint8_t>;

struct Bool {
  uint8_t byte;
};

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(Float16 value) { return to_float(value); }
inline float widen(Bfloat16 value) { return to_float(value); }
inline int64_t widen(Bool value) { return value.byte != 0; }
template <typename Integer>
std::enable_if_t<std::is_integral_v<Integer>, int64_t> widen(Integer value) {
  return value;
}

inline void narrow(float value, Float16* to) { *to = to_float16(value); }
inline void narrow(float value, Bfloat16* to) { *to = to_bfloat16(value); }
inline void narrow(int64_t value, Bool* to) { to->byte = value != 0; }
template <typename Number, typename Wide>
std::enable_if_t<std::is_arithmetic_v<Number>> narrow(Wide value, Number* to) {
  *to = value == value ? static_cast<Number>(value) : std::numeric_limits<Number>::quiet_NaN();
}

template <typename Floating>
Floating reference_combine(ReduceOp op, Floating a, Floating b) {
  if (a != a || b != b) return std::numeric_limits<Floating>::quiet_NaN();
  if (op == ReduceOp::kProduct) return a * b;
  if (op == ReduceOp::kMin) return a < b ? a : b;
  if (op == ReduceOp::kMax) return a > b ? a : b;
  return a + b;
}

// Uses unsigned arithmetic, because signed overflow is undefined; the low bits are the same. Min
// and max need the sign and cannot overflow.
inline int64_t reference_combine(ReduceOp op, int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return static_cast<int64_t>(x + y);
    case ReduceOp::kProduct:
      return static_cast<int64_t>(x * y);
    case ReduceOp::kMin:
      return a < b ? a : b;
    case ReduceOp::kMax:
      return a > b ? a : b;
    case ReduceOp::kBand:
      return a & b;
    case ReduceOp::kBor:
      return a | b;
    case ReduceOp::kBxor:
      return a ^ b;
  }
  return 0;
}

template <typename From, typename To>
void reference_elements(ReduceOp op, const Contributions& from, void* destination, size_t count) {
  using Wide = decltype(widen(From{}));
  for (size_t i = 0; i < count; ++i) {
    Wide total{};
    for (size_t s = 0; s < from.number; ++s) {
      From stored;
      std::memcpy(&stored, static_cast<const From*>(from.sources[s]) + i, sizeof stored);
      Wide value = widen(stored);
      if constexpr (std::is_floating_point_v<Wide>) value *= static_cast<Wide>(from.scale);
      total = s == 0 ? value : reference_combine(op, total, value);
    }
    if constexpr (std::is_floating_point_v<Wide>) total /= static_cast<Wide>(from.divisor);
    narrow(total, static_cast<To*>(destination) + i);
  }
}

template <typename Half>
void reference_halves(ReduceOp op, Partial partial, const Contributions& from, void* destination,
                      size_t count) {
  switch (partial) {
    case Partial::kNeither:
      return reference_elements<Half, Half>(op, from, destination, count);
    case Partial::kDestination:
      return reference_elements<Half, float>(op, from, destination, count);
    case Partial::kSources:
      return reference_elements<float, Half>(op, from, destination, count);
  }
}

inline void reference_reduce(Dtype dtype, ReduceOp op, Partial partial, const Contributions& from,
                             void* to, size_t count) {
  switch (dtype) {
    case Dtype::kFloat32:
      return reference_elements<float, float>(op, from, to, count);
    case Dtype::kFloat64:
      return reference_elements<double, double>(op, from, to, count);
    case Dtype::kFloat16:
      return reference_halves<Float16>(op, partial, from, to, count);
    case Dtype::kBfloat16:
      return reference_halves<Bfloat16>(op, partial, from, to, count);
    case Dtype::kInt8:
      return reference_elements<int8_t, int8_t>(op, from, to, count);
    case Dtype::kUint8:
      return reference_elements<uint8_t, uint8_t>(op, from, to, count);
    case Dtype::kInt16:
      return reference_elements<int16_t, int16_t>(op, from, to, count);
    case Dtype::kInt32:
      return reference_elements<int32_t, int32_t>(op, from, to, count);
    case Dtype::kInt64:
      return reference_elements<int64_t, int64_t>(op, from, to, count);
    case Dtype::kBool:
      return reference_elements<Bool, Bool>(op, from, to, count);
  }
}

inline int fraction_bits(Dtype dtype) {
  if (dtype == Dtype::kFloat64) return 52;
  if (dtype == Dtype::kFloat32) return 23;
  return dtype == Dtype::kFloat16 ? 10 : 7;
}

// Returns the bits of a floating-point number: random, denormal, zero, infinite, NaN, or between
// 1 and 4, where sums cancel and ties occur.
inline uint64_t hard_number(Dtype dtype, std::mt19937_64* random) {
  const int sign_at = static_cast<int>(8 * element_bytes(dtype)) - 1;
  const uint64_t any = (*random)();
  const uint64_t sign = any & uint64_t{1} << sign_at;
  const uint64_t fraction = any & ((uint64_t{1} << fraction_bits(dtype)) - 1);
  const uint64_t exponents = (uint64_t{1} << sign_at) - (uint64_t{1} << fraction_bits(dtype));
  const uint64_t one = exponents >> 1 & exponents;
  switch ((*random)() % 16) {
    case 0:
    case 1:
      return sign | fraction;
    case 2:
      return sign;
    case 3:
      return sign | exponents;
    case 4:
      return sign | exponents | fraction;
    case 5:
    case 6:
    case 7:
    case 8:
      return sign | (one + (any >> 63 << fraction_bits(dtype))) | fraction;
  }
  return any;
}

inline Bytes random_elements(Dtype dtype, size_t count, std::mt19937_64* random) {
  const size_t width = element_bytes(dtype);
  Bytes bytes(count * width);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = is_floating(dtype) ? hard_number(dtype, random) : (*random)();
    if (dtype == Dtype::kBool && bits % 2 == 0) bits = 0;
    std::memcpy(&bytes[i * width], &bits, width);
  }
  return bytes;
}

// Calls test(dtype, op) for all defined combinations.
template <typename Test>
void for_each_operation(Test test) {
  for (uint8_t d = 0; d < kDtypes; ++d) {
    for (uint8_t o = 0; o < kReduceOps; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (is_defined(op, dtype)) test(dtype, op);
    }
  }
}

}  // namespace smdist::testing
