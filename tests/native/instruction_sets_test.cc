// SPDX-License-Identifier: Apache-2.0
// Every available instruction set gives the same bits as the reference.
#include "reduce/instruction_set.h"
#include "reduce/reduce.h"
#include "reference_reduce.h"

namespace smdist {
namespace {

using namespace testing;

constexpr size_t kLongest = 600;  // elements: more than two groups of the widest vectors
constexpr size_t kGuard = 64;     // bytes around a result that must not change

struct Case {
  Dtype dtype;
  ReduceOp op;
  Partial partial;
  double scale;
  size_t number;  // number of sources

  // Partial results of 16-bit floats are 32-bit floats.
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
         InstructionSet isa) {
  switch (at.partial) {
    case Partial::kNeither:
      return reduce(at.dtype, at.op, at.scale, sources, to, count, isa);
    case Partial::kDestination:
      return reduce_to_partial(at.dtype, at.op, at.scale, sources, to, count, isa);
    case Partial::kSources:
      return reduce_partials(at.dtype, at.op, static_cast<int>(at.number), sources, to, count, isa);
  }
}

// Each source is one element longer than the previous one, so that alignments differ.
std::vector<Bytes> random_sources(const Case& at, std::mt19937_64* random) {
  std::vector<Bytes> sources;
  for (size_t s = 0; s < at.number; ++s) {
    sources.push_back(random_elements(at.from(), kLongest + s, random));
  }
  return sources;
}

// Returns the last `count` elements of each source, so that an access past their end leaves the
// allocation.
std::vector<const void*> ends_of(const Case& at, const std::vector<Bytes>& sources, size_t count) {
  std::vector<const void*> ends;
  const size_t bytes = count * element_bytes(at.from());
  for (const Bytes& source : sources) ends.push_back(source.data() + source.size() - bytes);
  return ends;
}

void check_count(const Case& at, const std::vector<Bytes>& sources, const Bytes& expected,
                 size_t count, InstructionSet isa) {
  const size_t bytes = count * element_bytes(at.to());
  Bytes framed(kGuard + bytes + kGuard, 0xcc);
  Bytes result = framed;
  std::memcpy(&framed[kGuard], expected.data() + expected.size() - bytes, bytes);
  run(at, ends_of(at, sources, count), &result[kGuard], count, isa);
  CHECK(framed == result);
}

void check_in_place(const Case& at, std::vector<Bytes> sources, const Bytes& expected, size_t which,
                    InstructionSet isa) {
  Bytes& target = sources[which];
  uint8_t* to = target.data() + target.size() - expected.size();
  run(at, ends_of(at, sources, kLongest), to, kLongest, isa);
  CHECK(std::memcmp(expected.data(), to, expected.size()) == 0);
}

void check_instruction_sets(const Case& at, std::mt19937_64* random) {
  const std::vector<Bytes> sources = random_sources(at, random);
  const std::vector<const void*> ends = ends_of(at, sources, kLongest);
  Bytes expected(kLongest * element_bytes(at.to()));
  reference_reduce(at.dtype, at.op, at.partial, {ends.data(), at.number, at.scale, at.divisor()},
                   expected.data(), kLongest);
  for (uint8_t l = 0; l < kInstructionSets; ++l) {
    const auto isa = static_cast<InstructionSet>(l);
    if (!is_available(isa)) continue;
    for (size_t count = 0; count <= 130; ++count) check_count(at, sources, expected, count, isa);
    for (const size_t count : {255, 256, 257, 600}) {
      check_count(at, sources, expected, count, isa);
    }
    if (at.from() != at.to()) continue;
    check_in_place(at, sources, expected, 0, isa);
    check_in_place(at, sources, expected, at.number - 1, isa);
  }
}

void check_stages(Dtype dtype, ReduceOp op) {
  std::mt19937_64 random(static_cast<unsigned>(dtype) * 100 + static_cast<unsigned>(op));
  for (const size_t number : {1, 2, 3, 4, 8}) {
    for (const double scale : {1.0, 0.3}) {
      if (scale != 1 && !is_floating(dtype)) continue;
      check_instruction_sets({dtype, op, Partial::kNeither, scale, number}, &random);
      check_instruction_sets({dtype, op, Partial::kDestination, scale, number}, &random);
    }
    check_instruction_sets({dtype, op, Partial::kSources, 1, number}, &random);
  }
}

void every_instruction_set_gives_the_bits_of_the_reference() { for_each_operation(check_stages); }

// Converts every float16 and bfloat16 to float and back.
void every_half_converts_to_float_and_back(Dtype dtype, InstructionSet isa) {
  constexpr size_t kCount = 0x10000;
  std::vector<uint16_t> halves(kCount);
  for (size_t i = 0; i < kCount; ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(kCount);
  std::vector<uint16_t> back(kCount);
  reduce_to_partial(dtype, ReduceOp::kSum, 1, {halves.data()}, floats.data(), kCount, isa);
  reduce_partials(dtype, ReduceOp::kSum, 1, {floats.data()}, back.data(), kCount, isa);
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

void every_half_converts_to_float_and_back() {
  for (uint8_t l = 0; l < kInstructionSets; ++l) {
    const auto isa = static_cast<InstructionSet>(l);
    if (!is_available(isa)) continue;
    every_half_converts_to_float_and_back(Dtype::kFloat16, isa);
    every_half_converts_to_float_and_back(Dtype::kBfloat16, isa);
  }
}

void the_best_instruction_set_is_available() {
  CHECK(is_available(InstructionSet::kBaseline));
  CHECK(is_available(best_instruction_set()));
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  std::printf("the best instruction set here is %s\n", name_of(best_instruction_set()));
  RUN(the_best_instruction_set_is_available);
  void (*to_float_and_back)() = every_half_converts_to_float_and_back;
  RUN(to_float_and_back);
  RUN(every_instruction_set_gives_the_bits_of_the_reference);
}
