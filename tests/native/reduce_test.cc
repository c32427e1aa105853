// SPDX-License-Identifier: Apache-2.0
#include "reduce/reduce.h"

#include <cmath>
#include <random>
#include <type_traits>

#include "check.h"
#include "reduce/half.h"

namespace smdist {
namespace {

using Bytes = std::vector<uint8_t>;

template <typename T>
T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A float16 by the book: sign, exponent and fraction as numbers.
float slow_float(Float16 half) {
  const int exponent = half.bits >> 10 & 31;
  const int fraction = half.bits & 1023;
  const float sign = (half.bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

// The float16 nearest to the value, ties to even, by the book.
Float16 slow_half(float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 65520) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (magnitude < 0x1p-24f / 2) return {sign};
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // of the last place
  const double steps = std::nearbyint(std::ldexp(static_cast<double>(magnitude), -unit));
  const double rounded = std::ldexp(steps, unit);
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    if (slow_float({static_cast<uint16_t>(bits)}) == rounded) {
      return {static_cast<uint16_t>(sign | bits)};
    }
  }
  return {static_cast<uint16_t>(sign | 0x7c00)};
}

void every_float16_goes_there_and_back() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const float wide = to_float(half);
    if (std::isnan(slow_float(half))) {
      CHECK(std::isnan(wide) && std::isnan(to_float(to_float16(wide))));
      continue;
    }
    CHECK_EQ(slow_float(half), wide);
    CHECK_EQ(half.bits, to_float16(wide).bits);
  }
}

void float16_rounds_to_the_nearest_even() {
  std::minstd_rand random(7);
  for (int i = 0; i < 1500; ++i) {
    const uint32_t exponent = 127 - 26 + random() % 44;
    const float value = bit_cast<float>(static_cast<uint32_t>(random() % 2) << 31 | exponent << 23 |
                                        (static_cast<uint32_t>(random()) & 0x7fffff));
    CHECK_EQ(slow_half(value).bits, to_float16(value).bits);
  }
  for (uint32_t bits = 0; bits < 0x7bff; bits += 3) {  // exactly between two
    const Float16 below{static_cast<uint16_t>(bits)};
    const Float16 above{static_cast<uint16_t>(bits + 1)};
    const Float16 even = bits % 2 == 0 ? below : above;
    CHECK_EQ(even.bits, to_float16((to_float(below) + to_float(above)) / 2).bits);
  }
}

void bfloat16_rounds_to_the_nearest_even() {
  CHECK_EQ(0x3f80, to_bfloat16(bit_cast<float>(0x3f808000u)).bits);  // a tie: down to even
  CHECK_EQ(0x3f82, to_bfloat16(bit_cast<float>(0x3f818000u)).bits);  // a tie: up to even
  CHECK_EQ(0x3f81, to_bfloat16(bit_cast<float>(0x3f808001u)).bits);
  CHECK_EQ(0x7f80, to_bfloat16(bit_cast<float>(0x7f7fffffu)).bits);  // overflow
  CHECK(std::isnan(to_float(to_bfloat16(bit_cast<float>(0x7f800001u)))));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bfloat16 half{static_cast<uint16_t>(bits)};
    if (!std::isnan(to_float(half))) CHECK_EQ(half.bits, to_bfloat16(to_float(half)).bits);
  }
}

// One element, computed the obvious way. Wide: what it is accumulated in.
template <typename Wide>
Wide slow_reduce(ReduceOp op, double scale, const std::vector<Wide>& values) {
  Wide total{};
  for (size_t i = 0; i < values.size(); ++i) {
    Wide value = values[i];
    if constexpr (std::is_floating_point_v<Wide>) value *= static_cast<Wide>(scale);
    if (i == 0) {
      total = value;
      continue;
    }
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
        total += value;
        break;
      case ReduceOp::kProduct:
        total *= value;
        break;
      case ReduceOp::kMin:
        if (value != value || value < total) total = value;
        break;
      case ReduceOp::kMax:
        if (value != value || value > total) total = value;
        break;
      case ReduceOp::kBand:
      case ReduceOp::kBor:
      case ReduceOp::kBxor:
        if constexpr (std::is_integral_v<Wide>) {
          total = op == ReduceOp::kBand  ? total & value
                  : op == ReduceOp::kBor ? total | value
                                         : total ^ value;
        }
        break;
    }
    if (total != total) return total;  // NaN stays NaN
  }
  if constexpr (std::is_floating_point_v<Wide>) {
    if (op == ReduceOp::kAverage) total /= static_cast<Wide>(values.size());
  }
  return total;
}

// Unsigned, as signed overflow is undefined; the low bits are the same. Min and
// max need the sign, and cannot overflow.
template <typename Stored>
void check_integer(ReduceOp op, const std::vector<const uint8_t*>& at, const uint8_t* result) {
  const bool is_ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
  std::vector<int64_t> ordered;
  std::vector<uint64_t> wrapped;
  for (const uint8_t* source : at) {
    ordered.push_back(load<Stored>(source));
    wrapped.push_back(static_cast<uint64_t>(load<Stored>(source)));
  }
  const Stored expected = is_ordered ? static_cast<Stored>(slow_reduce(op, 1, ordered))
                                     : static_cast<Stored>(slow_reduce(op, 1, wrapped));
  CHECK_EQ(expected, load<Stored>(result));
}

template <typename Stored, typename Wide>
void check_floating(const std::vector<const uint8_t*>& at, const uint8_t* result, ReduceOp op,
                    double scale, Wide (*widen)(Stored), Stored (*narrow)(Wide)) {
  std::vector<Wide> values;
  for (const uint8_t* source : at) values.push_back(widen(load<Stored>(source)));
  const Stored expected = narrow(slow_reduce(op, scale, values));
  const Stored actual = load<Stored>(result);
  if (widen(expected) != widen(expected)) {
    CHECK(widen(actual) != widen(actual));
  } else {
    CHECK(std::memcmp(&expected, &actual, sizeof actual) == 0);
  }
}

void check_bool(ReduceOp op, const std::vector<const uint8_t*>& at, const uint8_t* result) {
  std::vector<uint64_t> values;
  for (const uint8_t* source : at) values.push_back(*source != 0);
  const bool expected = slow_reduce(op, 1, values) != 0;
  CHECK_EQ(expected, static_cast<bool>(*result));
  CHECK(*result <= 1);
}

void check_element(Dtype dtype, ReduceOp op, double scale, const std::vector<const uint8_t*>& at,
                   const uint8_t* result) {
  switch (dtype) {
    case Dtype::kFloat32:
      return check_floating<float, float>(
          at, result, op, scale, [](float x) { return x; }, [](float x) { return x; });
    case Dtype::kFloat64:
      return check_floating<double, double>(
          at, result, op, scale, [](double x) { return x; }, [](double x) { return x; });
    case Dtype::kFloat16:
      return check_floating<Float16, float>(at, result, op, scale, to_float, to_float16);
    case Dtype::kBfloat16:
      return check_floating<Bfloat16, float>(at, result, op, scale, to_float, to_bfloat16);
    case Dtype::kInt8:
      return check_integer<int8_t>(op, at, result);
    case Dtype::kUint8:
      return check_integer<uint8_t>(op, at, result);
    case Dtype::kInt16:
      return check_integer<int16_t>(op, at, result);
    case Dtype::kInt32:
      return check_integer<int32_t>(op, at, result);
    case Dtype::kInt64:
      return check_integer<int64_t>(op, at, result);
    case Dtype::kBool:
      return check_bool(op, at, result);
  }
}

// Random bits are random numbers, denormals, infinities and NaNs alike; the
// second half of them are small numbers, so that sums do not all overflow.
Bytes random_elements(Dtype dtype, size_t count, std::minstd_rand* random) {
  Bytes bytes(count * element_bytes(dtype));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((*random)() >> 8);
  if (dtype != Dtype::kFloat32) return bytes;
  for (size_t i = count / 2; i < count; ++i) {
    const float small = static_cast<float>((*random)() % 2000) / 1000.0f - 1.0f;
    std::memcpy(&bytes[4 * i], &small, sizeof small);
  }
  return bytes;
}

void check_reduce(Dtype dtype, ReduceOp op, double scale, size_t sources, size_t count,
                  std::minstd_rand* random) {
  const size_t width = element_bytes(dtype);
  std::vector<Bytes> data;
  std::vector<const void*> inputs;
  for (size_t i = 0; i < sources; ++i) data.push_back(random_elements(dtype, count, random));
  for (const Bytes& each : data) inputs.push_back(each.data());
  Bytes result(count * width, 0xcc);
  reduce(dtype, op, scale, inputs, result.data(), count);
  for (size_t i = 0; i < count; ++i) {
    std::vector<const uint8_t*> at;
    for (const Bytes& each : data) at.push_back(&each[i * width]);
    check_element(dtype, op, scale, at, &result[i * width]);
  }
  // In place: the last source is the destination.
  reduce(dtype, op, scale, inputs, data.back().data(), count);
  CHECK(data.back() == result);
}

void every_dtype_and_operation_agrees_with_the_obvious_way() {
  std::minstd_rand random(1);
  for (uint8_t d = 0; d < kDtypes; ++d) {
    for (uint8_t o = 0; o < kReduceOps; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (!is_defined(op, dtype)) continue;
      for (const size_t sources : {1, 2, 3, 8}) {
        for (const size_t count : {0, 1, 7, 2500}) {
          check_reduce(dtype, op, 1, sources, count, &random);
          if (is_floating(dtype)) check_reduce(dtype, op, 0.3, sources, count, &random);
        }
      }
    }
  }
}

// 2048 + 1 + 1 is 2050 in float16 if it is rounded once, and 2048 if at each step.
void halves_round_once() {
  const Float16 big = to_float16(2048);
  const Float16 one = to_float16(1);
  Float16 result{};
  reduce(Dtype::kFloat16, ReduceOp::kSum, 1, {&big, &one, &one}, &result, 1);
  CHECK_EQ(2050.0f, to_float(result));
}

// A sum of partial sums is the sum, for one part and, where additions are exact, for
// any parts.
void partial_sums_come_to_the_sum() {
  std::minstd_rand random(2);
  constexpr size_t kCount = 2500;
  for (uint8_t d = 0; d < kDtypes; ++d) {
    for (uint8_t o = 0; o < kReduceOps; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (!is_defined(op, dtype)) continue;
      const double scale = is_floating(dtype) ? 0.3 : 1;
      std::vector<Bytes> data;
      std::vector<const void*> all;
      for (int i = 0; i < 3; ++i) data.push_back(random_elements(dtype, kCount, &random));
      for (const Bytes& each : data) all.push_back(each.data());
      Bytes whole(kCount * element_bytes(dtype));
      Bytes stepwise(whole.size());
      reduce(dtype, op, scale, all, whole.data(), kCount);
      for (const size_t cut : {size_t{3}, size_t{1}}) {
        if (is_floating(dtype) && cut != 3) continue;
        Bytes first(kCount * partial_bytes(dtype));
        Bytes second(first.size());
        reduce_to_partial(dtype, op, scale, {all.begin(), all.begin() + cut}, first.data(), kCount);
        std::vector<const void*> parts = {first.data()};
        if (cut < 3) {
          reduce_to_partial(dtype, op, scale, {all.begin() + cut, all.end()}, second.data(),
                            kCount);
          parts.push_back(second.data());
        }
        reduce_partials(dtype, op, 3, parts, stepwise.data(), kCount);
        CHECK(whole == stepwise);
      }
    }
  }
}

void partial_sums_of_halves_round_once() {
  const Float16 big = to_float16(2048);
  const Float16 one = to_float16(1);
  float first = 0;
  float second = 0;
  Float16 result{};
  reduce_to_partial(Dtype::kFloat16, ReduceOp::kSum, 1, {&big, &one}, &first, 1);
  reduce_to_partial(Dtype::kFloat16, ReduceOp::kSum, 1, {&one}, &second, 1);
  reduce_partials(Dtype::kFloat16, ReduceOp::kSum, 3, {&first, &second}, &result, 1);
  CHECK_EQ(2050.0f, to_float(result));
}

void average_is_not_defined_for_integers() {
  CHECK(!is_defined(ReduceOp::kAverage, Dtype::kInt32));
  CHECK(!is_defined(ReduceOp::kBxor, Dtype::kFloat32));
  CHECK(is_defined(ReduceOp::kBxor, Dtype::kBool));
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(every_float16_goes_there_and_back);
  RUN(float16_rounds_to_the_nearest_even);
  RUN(bfloat16_rounds_to_the_nearest_even);
  RUN(every_dtype_and_operation_agrees_with_the_obvious_way);
  RUN(halves_round_once);
  RUN(partial_sums_come_to_the_sum);
  RUN(partial_sums_of_halves_round_once);
  RUN(average_is_not_defined_for_integers);
}
