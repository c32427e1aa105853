// SPDX-License-Identifier: Apache-2.0
// Every level this machine has gives the bits of the obvious way.
#include "reduce/level.h"
#include "reduce/reduce.h"
#include "slow_reduce.h"

namespace smdist {
namespace {

using namespace testing;

constexpr size_t kLongest = 600;  // elements: two groups of the widest vectors, and more
constexpr size_t kGuard = 64;     // bytes around a result that must stay as they are

struct Case {
  Dtype dtype;
  ReduceOp op;
  Partial partial;
  double scale;
  size_t number;  // of sources

  // Partial results of halves are floats.
  Dtype from() const { return partial == Partial::kSources ? wide() : dtype; }
  Dtype to() const { return partial == Partial::kDestination ? wide() : dtype; }
  Dtype wide() const {
    return partial_bytes(dtype) == element_bytes(dtype) ? dtype : Dtype::kFloat32;
  }

  double divisor() const {
    const bool is_last = op == ReduceOp::kAverage && partial != Partial::kDestination;
    return is_last ? static_cast<double>(number) : 1;
  }
};

void run(const Case& at, const std::vector<const void*>& sources, void* to, size_t count,
         Level level) {
  switch (at.partial) {
    case Partial::kNeither:
      return reduce(at.dtype, at.op, at.scale, sources, to, count, level);
    case Partial::kDestination:
      return reduce_to_partial(at.dtype, at.op, at.scale, sources, to, count, level);
    case Partial::kSources:
      return reduce_partials(at.dtype, at.op, static_cast<int>(at.number), sources, to, count,
                             level);
  }
}

// Each source is one element longer than the one before, so that no two need have the
// same alignment.
std::vector<Bytes> random_sources(const Case& at, std::mt19937_64* random) {
  std::vector<Bytes> sources;
  for (size_t s = 0; s < at.number; ++s) {
    sources.push_back(random_elements(at.from(), kLongest + s, random));
  }
  return sources;
}

// The last `count` elements, so that whoever reads or writes past them leaves the block.
std::vector<const void*> ends_of(const Case& at, const std::vector<Bytes>& sources, size_t count) {
  std::vector<const void*> ends;
  const size_t bytes = count * element_bytes(at.from());
  for (const Bytes& source : sources) ends.push_back(source.data() + source.size() - bytes);
  return ends;
}

void check_count(const Case& at, const std::vector<Bytes>& sources, const Bytes& expected,
                 size_t count, Level level) {
  const size_t bytes = count * element_bytes(at.to());
  Bytes framed(kGuard + bytes + kGuard, 0xcc);
  Bytes result = framed;
  std::memcpy(&framed[kGuard], expected.data() + expected.size() - bytes, bytes);
  run(at, ends_of(at, sources, count), &result[kGuard], count, level);
  CHECK(framed == result);
}

void check_in_place(const Case& at, std::vector<Bytes> sources, const Bytes& expected, size_t which,
                    Level level) {
  Bytes& target = sources[which];
  uint8_t* to = target.data() + target.size() - expected.size();
  run(at, ends_of(at, sources, kLongest), to, kLongest, level);
  CHECK(std::memcmp(expected.data(), to, expected.size()) == 0);
}

void check_levels(const Case& at, std::mt19937_64* random) {
  const std::vector<Bytes> sources = random_sources(at, random);
  const std::vector<const void*> ends = ends_of(at, sources, kLongest);
  Bytes expected(kLongest * element_bytes(at.to()));
  slow_reduce(at.dtype, at.op, at.partial, {ends.data(), at.number, at.scale, at.divisor()},
              expected.data(), kLongest);
  for (uint8_t l = 0; l < kLevels; ++l) {
    const auto level = static_cast<Level>(l);
    if (!is_available(level)) continue;
    for (size_t count = 0; count <= 130; ++count) check_count(at, sources, expected, count, level);
    for (const size_t count : {255, 256, 257, 600}) {
      check_count(at, sources, expected, count, level);
    }
    if (at.from() != at.to()) continue;
    check_in_place(at, sources, expected, 0, level);
    check_in_place(at, sources, expected, at.number - 1, level);
  }
}

void check_stages(Dtype dtype, ReduceOp op) {
  std::mt19937_64 random(static_cast<unsigned>(dtype) * 100 + static_cast<unsigned>(op));
  for (const size_t number : {1, 2, 3, 4, 8}) {
    for (const double scale : {1.0, 0.3}) {
      if (scale != 1 && !is_floating(dtype)) continue;
      check_levels({dtype, op, Partial::kNeither, scale, number}, &random);
      check_levels({dtype, op, Partial::kDestination, scale, number}, &random);
    }
    check_levels({dtype, op, Partial::kSources, 1, number}, &random);
  }
}

void every_level_gives_the_bits_of_the_obvious_way() { for_each_operation(check_stages); }

// Every float16 and bfloat16 becomes the float it is, and the float16 or bfloat16 again.
void every_half_goes_there_and_back(Dtype dtype, Level level) {
  constexpr size_t kCount = 0x10000;
  std::vector<uint16_t> halves(kCount);
  for (size_t i = 0; i < kCount; ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(kCount);
  std::vector<uint16_t> back(kCount);
  reduce_to_partial(dtype, ReduceOp::kSum, 1, {halves.data()}, floats.data(), kCount, level);
  reduce_partials(dtype, ReduceOp::kSum, 1, {floats.data()}, back.data(), kCount, level);
  for (size_t i = 0; i < kCount; ++i) {
    const float expected =
        dtype == Dtype::kFloat16 ? to_float(Float16{halves[i]}) : to_float(Bfloat16{halves[i]});
    if (expected != expected) {
      CHECK(floats[i] != floats[i]);
      CHECK_EQ(dtype == Dtype::kFloat16 ? 0x7e00 : 0x7fc0, back[i]);
    } else {
      CHECK_EQ(expected, floats[i]);
      CHECK_EQ(halves[i], back[i]);
    }
  }
}

void every_half_goes_there_and_back() {
  for (uint8_t l = 0; l < kLevels; ++l) {
    const auto level = static_cast<Level>(l);
    if (!is_available(level)) continue;
    every_half_goes_there_and_back(Dtype::kFloat16, level);
    every_half_goes_there_and_back(Dtype::kBfloat16, level);
  }
}

void the_best_level_is_available() {
  CHECK(is_available(Level::kBaseline));
  CHECK(is_available(best_level()));
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  std::printf("the best level here is %s\n", name_of(best_level()));
  RUN(the_best_level_is_available);
  void (*there_and_back)() = every_half_goes_there_and_back;
  RUN(there_and_back);
  RUN(every_level_gives_the_bits_of_the_obvious_way);
}
