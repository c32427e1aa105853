// SPDX-License-Identifier: Apache-2.0
// What a rank says it called, so that ranks that disagree find out.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "messaging/frame.h"
#include "smdist/operation.h"

namespace smdist {

struct Descriptor {
  Collective kind = Collective::kBarrier;
  Dtype dtype = Dtype::kUint8;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
  int32_t root = 0;
  uint64_t bytes = 0;       // of the buffer or of one chunk; all_to_all: the layout
  uint64_t to_bytes = 0;    // all_to_all: what the sender sends to the receiver,
  uint64_t from_bytes = 0;  // and what it expects from it. Of others both are the layout
};

using DescriptorBytes = std::array<uint8_t, kDescriptorBytes>;
DescriptorBytes encode(const Descriptor& descriptor);

// Throws PeerError; its text completes a sentence that begins with the sender.
Descriptor decode(const DescriptorBytes& bytes);

// Whether two ranks that describe an operation so can do it with each other.
bool agree(const Descriptor& ours, const Descriptor& theirs);

// As "all_reduce(sum, float32, 6553600)"; the number counts elements.
std::string text_of(const Descriptor& descriptor);

}  // namespace smdist
