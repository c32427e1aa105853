// SPDX-License-Identifier: Apache-2.0
// Instruction sets for which reductions are compiled. All of them give the same bits.
#pragma once

#include <cstdint>

namespace smdist {

enum class InstructionSet : uint8_t {
  kBaseline = 0,  // compiler default: SSE2 on x86-64, NEON on AArch64
  kAvx2 = 1,      // with F16C
  kAvx512 = 2,    // F, BW, DQ and VL
};
constexpr uint8_t kInstructionSets = 3;

const char* name_of(InstructionSet isa);

// Return whether the build contains the instruction set and this machine supports it.
bool is_available(InstructionSet isa);

// Return the best available instruction set, which is detected once.
InstructionSet best_instruction_set();

}  // namespace smdist
