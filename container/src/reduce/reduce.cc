// SPDX-License-Identifier: Apache-2.0
#include "reduce/reduce.h"

#include "reduce/kernels.h"

namespace smdist {
namespace {

Kernel kernel_at(InstructionSet isa, Dtype dtype, ReduceOp op, Partial partial) {
#if defined(__x86_64__)
  switch (isa) {
    case InstructionSet::kBaseline:
      break;
    case InstructionSet::kAvx2:
      return avx2_kernel(dtype, op, partial);
    case InstructionSet::kAvx512:
      return avx512_kernel(dtype, op, partial);
  }
#endif
  (void)isa;  // other processors have the baseline only
  return baseline_kernel(dtype, op, partial);
}

double divisor_of(ReduceOp op, size_t contributions) {
  return op == ReduceOp::kAverage ? static_cast<double>(contributions) : 1;
}

}  // namespace

void reduce(Dtype dtype, ReduceOp op, double scale, const std::vector<const void*>& sources,
            void* destination, size_t count, InstructionSet isa) {
  const Kernel kernel = kernel_at(isa, dtype, op, Partial::kNeither);
  kernel({sources.data(), sources.size(), scale, divisor_of(op, sources.size())}, destination,
         count);
}

void reduce_to_partial(Dtype dtype, ReduceOp op, double scale,
                       const std::vector<const void*>& sources, void* destination, size_t count,
                       InstructionSet isa) {
  const Kernel kernel = kernel_at(isa, dtype, op, Partial::kDestination);
  kernel({sources.data(), sources.size(), scale, 1}, destination, count);
}

void reduce_partials(Dtype dtype, ReduceOp op, int contributions,
                     const std::vector<const void*>& sources, void* destination, size_t count,
                     InstructionSet isa) {
  const Kernel kernel = kernel_at(isa, dtype, op, Partial::kSources);
  const double divisor = divisor_of(op, static_cast<size_t>(contributions));
  kernel({sources.data(), sources.size(), 1, divisor}, destination, count);
}

size_t partial_bytes(Dtype dtype) {
  const bool is_half = dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16;
  return is_half ? sizeof(float) : element_bytes(dtype);
}

}  // namespace smdist
