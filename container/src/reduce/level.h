// SPDX-License-Identifier: Apache-2.0
// The instruction sets that sums are compiled for. All give the same bits.
#pragma once

#include <cstdint>

namespace smdist {

enum class Level : uint8_t {
  kBaseline = 0,  // what the compiler may assume: SSE2 on x86-64, NEON on AArch64
  kAvx2 = 1,      // with F16C
  kAvx512 = 2,    // F, BW, DQ and VL
};
constexpr uint8_t kLevels = 3;

const char* name_of(Level level);

// Whether this build has the level, and this processor and its kernel run it.
bool is_available(Level level);

// The highest available one; found out once.
Level best_level();

}  // namespace smdist
