// SPDX-License-Identifier: Apache-2.0
// Frames of a hostile peer, made from an input: most are nearly right, so that they reach deep.
#pragma once

#include <cstdint>
#include <vector>

#include "fuzz_input.h"
#include "messaging/frame.h"
#include "posted_operations.h"

namespace smdist::fuzzing {

// Bytes of a frame: a header, and a payload.
using FrameBytes = std::vector<uint8_t>;

// Return a frame of the peer for one of the posted operations, or for none.
FrameBytes hostile_frame(FuzzInput& input, int peer, PostedOperations& operations);

}  // namespace smdist::fuzzing
