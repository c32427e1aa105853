// SPDX-License-Identifier: Apache-2.0
#include "reduce/level.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace smdist {
namespace {

#if defined(__x86_64__)

// Not every compiler's __builtin_cpu_supports knows the name "f16c".
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

const char* name_of(Level level) {
  switch (level) {
    case Level::kBaseline:
      return "baseline";
    case Level::kAvx2:
      return "avx2";
    case Level::kAvx512:
      return "avx512";
  }
  return "?";
}

bool is_available(Level level) {
  switch (level) {
    case Level::kBaseline:
      return true;
    case Level::kAvx2:
      return has_avx2();
    case Level::kAvx512:
      return has_avx512();
  }
  return false;
}

Level best_level() {
  static const Level best = is_available(Level::kAvx512) ? Level::kAvx512
                            : is_available(Level::kAvx2) ? Level::kAvx2
                                                         : Level::kBaseline;
  return best;
}

}  // namespace smdist
