// SPDX-License-Identifier: Apache-2.0
#include "reduce/reduce.h"

#include <cmath>
#include <random>

#include "check.h"
#include "reduce/half_precision.h"
#include "reference_reduce.h"

namespace smdist {
namespace {

using namespace testing;

// Reference conversion of a float16, from sign, exponent and fraction as numbers.
float slow_float(Float16 half) {
  const int exponent = half.bits >> 10 & 31;
  const int fraction = half.bits & 1023;
  const float sign = (half.bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

// Reference conversion to the nearest float16, ties to even.
Float16 slow_half(float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 65520) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (magnitude < 0x1p-24f / 2) return {sign};
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // exponent of the last place
  const double steps = std::nearbyint(std::ldexp(static_cast<double>(magnitude), -unit));
  const double rounded = std::ldexp(steps, unit);
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    if (slow_float({static_cast<uint16_t>(bits)}) == rounded) {
      return {static_cast<uint16_t>(sign | bits)};
    }
  }
  return {static_cast<uint16_t>(sign | 0x7c00)};
}

void every_float16_converts_to_float_and_back() {
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
  for (uint32_t bits = 0; bits < 0x7bff; bits += 3) {  // halfway between two neighbouring values
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

// 2048 + 1 + 1 is 2050 in float16 if rounded once, and 2048 if rounded at each step.
void halves_round_once() {
  const Float16 big = to_float16(2048);
  const Float16 one = to_float16(1);
  Float16 result{};
  reduce(Dtype::kFloat16, ReduceOp::kSum, 1, {&big, &one, &one}, &result, 1);
  CHECK_EQ(2050.0f, to_float(result));
}

// The sum of partial sums equals the sum: for one part, and for any parts if additions are exact.
void check_partial_sums(Dtype dtype, ReduceOp op, size_t cut) {
  constexpr size_t kCount = 2500;
  std::mt19937_64 random(2);
  const double scale = is_floating(dtype) ? 0.3 : 1;
  std::vector<Bytes> data;
  std::vector<const void*> all;
  for (int i = 0; i < 3; ++i) data.push_back(random_elements(dtype, kCount, &random));
  for (const Bytes& each : data) all.push_back(each.data());
  const auto middle = all.begin() + static_cast<ptrdiff_t>(cut);
  Bytes whole(kCount * element_bytes(dtype));
  Bytes stepwise(whole.size());
  Bytes first(kCount * partial_bytes(dtype));
  Bytes second(first.size());
  reduce(dtype, op, scale, all, whole.data(), kCount);
  reduce_to_partial(dtype, op, scale, {all.begin(), middle}, first.data(), kCount);
  std::vector<const void*> parts = {first.data()};
  if (cut < all.size()) {
    reduce_to_partial(dtype, op, scale, {middle, all.end()}, second.data(), kCount);
    parts.push_back(second.data());
  }
  reduce_partials(dtype, op, 3, parts, stepwise.data(), kCount);
  CHECK(whole == stepwise);
}

void partial_sums_add_up_to_the_sum() {
  for_each_operation([](Dtype dtype, ReduceOp op) {
    check_partial_sums(dtype, op, 3);
    if (!is_floating(dtype)) check_partial_sums(dtype, op, 1);
  });
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

// Every NaN becomes the same one, whatever its source.
void every_nan_becomes_the_same_nan() {
  const float negative = bit_cast<float>(0xffc12345u);
  const float signalling = bit_cast<float>(0x7f800001u);
  const float infinite = INFINITY;
  const float opposite = -INFINITY;
  float result = 0;
  for (const auto& sources : std::vector<std::vector<const void*>>{{&negative, &signalling},
                                                                   {&signalling, &negative},
                                                                   {&infinite, &opposite},
                                                                   {&negative}}) {
    reduce(Dtype::kFloat32, ReduceOp::kSum, 1, sources, &result, 1);
    CHECK_EQ(0x7fc00000u, bit_cast<uint32_t>(result));
  }
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
  RUN(every_float16_converts_to_float_and_back);
  RUN(float16_rounds_to_the_nearest_even);
  RUN(bfloat16_rounds_to_the_nearest_even);
  RUN(halves_round_once);
  RUN(partial_sums_add_up_to_the_sum);
  RUN(partial_sums_of_halves_round_once);
  RUN(every_nan_becomes_the_same_nan);
  RUN(average_is_not_defined_for_integers);
}
