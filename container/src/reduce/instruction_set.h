// SPDX-License-Identifier: Apache-2.0
// Instruction sets that reductions are compiled for. All of them give the same bits.
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

// Returns whether the build contains the instruction set and this machine supports it.
bool is_available(InstructionSet isa);

// Returns the highest available instruction set; detected once.
InstructionSet best_instruction_set();

}  // namespace smdist
