// SPDX-License-Identifier: Apache-2.0
// Description of an operation, which ranks send each other to detect calls that do not match.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "messaging/frame.h"
#include "smdist/operation.h"

namespace smdist {

// Arguments of an operation that must match among the ranks.
struct Descriptor {
  Collective kind = Collective::kBarrier;
  Dtype dtype = Dtype::kUint8;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
  int32_t root = 0;
  // Length of the buffer, or of one rank's part of it. all_to_all: the hash of the layout.
  uint64_t bytes = 0;
  // all_to_all: number of bytes from the sender of this descriptor to its receiver, and back. Other
  // kinds: both contain the hash of the layout.
  uint64_t to_bytes = 0;
  uint64_t from_bytes = 0;
  // Length of all operations of the call; equal to `bytes` if the call is one operation.
  uint64_t call_bytes = 0;
};

// Descriptor in the wire format.
using DescriptorBytes = std::array<uint8_t, kDescriptorBytes>;
DescriptorBytes encode(const Descriptor& descriptor);

// Decode a descriptor. Throws PeerError; its text is the rest of a sentence that begins with the
// sender's name.
Descriptor decode_descriptor(const DescriptorBytes& bytes);

// Return whether two ranks with these descriptors can run the operation together.
bool agree(const Descriptor& ours, const Descriptor& theirs);

// Return whether both ranks call the same collective and describe other contents of the buffers.
bool have_other_layouts(const Descriptor& ours, const Descriptor& theirs);

// Return a text such as "all_reduce(sum, float32, 6553600)"; the number counts elements.
std::string text_of(const Descriptor& descriptor);

}  // namespace smdist
