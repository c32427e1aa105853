// SPDX-License-Identifier: Apache-2.0
// Description of an operation, which ranks send each other to detect calls that do not match.
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
  uint64_t bytes = 0;       // length of the buffer or of one part; all_to_all: hash of the layout
  uint64_t to_bytes = 0;    // all_to_all: bytes from the sender of this descriptor to its receiver;
  uint64_t from_bytes = 0;  // bytes it expects back. Other kinds: both hold the hash of the layout
};

using DescriptorBytes = std::array<uint8_t, kDescriptorBytes>;
DescriptorBytes encode(const Descriptor& descriptor);

// Throws PeerError with a predicate as text; the caller puts the sender's name before it.
Descriptor decode(const DescriptorBytes& bytes);

// Returns whether two ranks with these descriptors can run the operation together.
bool agree(const Descriptor& ours, const Descriptor& theirs);

// Returns text such as "all_reduce(sum, float32, 6553600)"; the number counts elements.
std::string text_of(const Descriptor& descriptor);

}  // namespace smdist
