// SPDX-License-Identifier: Apache-2.0
// Where in its sender's arena the bytes of a message lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smdist {

struct Place {
  uint32_t block = 0;
  uint32_t bytes = 0;
};

std::string encode(const Place& place);

// Throws PeerError; its text completes a sentence that begins with the sender.
Place decode_place(const std::vector<uint8_t>& bytes);

}  // namespace smdist
