// SPDX-License-Identifier: Apache-2.0
// Reference to a block of the sender's arena that holds the bytes of a message.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smdist {

struct BlockRef {
  uint32_t block = 0;
  uint32_t bytes = 0;
};

std::string encode(const BlockRef& ref);

// Throws PeerError with a predicate as text; the caller puts the sender's name before it.
BlockRef decode_block_ref(const std::vector<uint8_t>& bytes);

}  // namespace smdist
