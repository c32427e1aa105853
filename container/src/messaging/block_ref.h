// SPDX-License-Identifier: Apache-2.0
// Reference to a block of the sender's arena that holds the bytes of a message.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smdist {

// Number of a block, and the number of its bytes that belong to the message.
struct BlockRef {
  uint32_t block = 0;
  uint32_t bytes = 0;
};

// Return the bytes of a reference for the wire.
std::string encode(const BlockRef& ref);

// Decode a reference. Throws PeerError; its text is the rest of a sentence that begins with the
// sender's name.
BlockRef decode_block_ref(const std::vector<uint8_t>& bytes);

}  // namespace smdist
