// SPDX-License-Identifier: Apache-2.0
#include "reduce/instruction_set.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace smdist {
namespace {

#if defined(__x86_64__)

// Some compilers' __builtin_cpu_supports does not know the name "f16c".
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#else

bool has_avx2() { return false; }
bool has_avx512() { return false; }

#endif

}  // namespace

const char* name_of(InstructionSet isa) {
  switch (isa) {
    case InstructionSet::kBaseline:
      return "baseline";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
  }
  return "?";
}

bool is_available(InstructionSet isa) {
  switch (isa) {
    case InstructionSet::kBaseline:
      return true;
    case InstructionSet::kAvx2:
      return has_avx2();
    case InstructionSet::kAvx512:
      return has_avx512();
  }
  return false;
}

InstructionSet best_instruction_set() {
  static const InstructionSet best = is_available(InstructionSet::kAvx512) ? InstructionSet::kAvx512
                                     : is_available(InstructionSet::kAvx2)
                                         ? InstructionSet::kAvx2
                                         : InstructionSet::kBaseline;
  return best;
}

}  // namespace smdist
