// SPDX-License-Identifier: Apache-2.0
// Prints how many GB of input per second one core reduces with each instruction set, next to a
// loop over single elements. Sizes are the total of all inputs; times are medians.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "reduce/half_precision.h"
#include "reduce/instruction_set.h"
#include "reduce/reduce.h"
#include "smdist/dtype.h"

namespace smdist {
namespace {

constexpr size_t kCached = size_t{256} << 10;
constexpr size_t kUncached = size_t{64} << 20;
constexpr double kSeconds = 0.15;  // measured time for each median

float to_float(float value) { return value; }

void store(float total, float* to) { *to = total; }
void store(double total, double* to) { *to = total; }
void store(float total, Float16* to) { *to = to_float16(total); }
void store(float total, Bfloat16* to) { *to = to_bfloat16(total); }

template <typename Element, typename Wide>
void one_at_a_time(const std::vector<const void*>& sources, void* destination, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Wide total = 0;
    for (const void* source : sources) {
      const Element element = static_cast<const Element*>(source)[i];
      if constexpr (std::is_same_v<Element, double>) {
        total += element;
      } else {
        total += to_float(element);
      }
    }
    store(total, static_cast<Element*>(destination) + i);
  }
}

void one_at_a_time(Dtype dtype, const std::vector<const void*>& sources, void* to, size_t count) {
  if (dtype == Dtype::kFloat32) return one_at_a_time<float, float>(sources, to, count);
  if (dtype == Dtype::kFloat64) return one_at_a_time<double, double>(sources, to, count);
  if (dtype == Dtype::kFloat16) return one_at_a_time<Float16, float>(sources, to, count);
  return one_at_a_time<Bfloat16, float>(sources, to, count);
}

template <typename Work>
double median_seconds(Work work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  work();
  for (double spent = 0; spent < kSeconds || seconds.size() < 5; spent += seconds.back()) {
    const auto start = Clock::now();
    work();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

// Returns the speed of the loop over single elements, then of each available instruction set.
std::vector<double> gigabytes_per_second(Dtype dtype, size_t number, size_t input_bytes) {
  const size_t count = input_bytes / number / element_bytes(dtype);
  const std::vector<uint8_t> zeros(input_bytes / number);  // zeros avoid slow denormal numbers
  const std::vector<std::vector<uint8_t>> data(number, zeros);
  std::vector<uint8_t> result(zeros);
  std::vector<const void*> sources;
  for (const std::vector<uint8_t>& each : data) sources.push_back(each.data());
  const double gigabytes = static_cast<double>(input_bytes) / 1e9;
  std::vector<double> speeds;
  speeds.push_back(gigabytes /
                   median_seconds([&] { one_at_a_time(dtype, sources, result.data(), count); }));
  for (uint8_t l = 0; l < kInstructionSets; ++l) {
    const auto isa = static_cast<InstructionSet>(l);
    if (!is_available(isa)) continue;
    speeds.push_back(gigabytes / median_seconds([&] {
                       reduce(dtype, ReduceOp::kSum, 1, sources, result.data(), count, isa);
                     }));
  }
  return speeds;
}

void print_rows(Dtype dtype, size_t number) {
  const std::vector<double> cached = gigabytes_per_second(dtype, number, kCached);
  const std::vector<double> uncached = gigabytes_per_second(dtype, number, kUncached);
  std::vector<const char*> names = {"one at a time"};
  for (uint8_t l = 0; l < kInstructionSets; ++l) {
    if (is_available(static_cast<InstructionSet>(l)))
      names.push_back(name_of(static_cast<InstructionSet>(l)));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    std::printf("%-9s %7zu  %-13s %8.1f %6.1f %8.1f %6.1f\n", name_of(dtype), number, names[i],
                cached[i], cached[i] / cached[0], uncached[i], uncached[i] / uncached[0]);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  std::printf("                                 256 KiB          64 MiB\n");
  std::printf("dtype     sources  instructions    GB/s  ratio     GB/s  ratio\n");
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16, Dtype::kFloat64}) {
    for (const size_t number : {2, 3, 4, 8}) print_rows(dtype, number);
  }
}
