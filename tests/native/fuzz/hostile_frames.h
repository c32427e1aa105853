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

// Return the frames that an honest peer sends for one of the operations: that it has posted the
// operation, too, and the messages that the plan expects. Empty if the peer is not a member.
std::vector<FrameBytes> honest_frames(FuzzInput& input, int peer, PostedOperations& operations);

}  // namespace smdist::fuzzing
