// SPDX-License-Identifier: Apache-2.0
// Payloads of messages that fuzz targets send, so that whoever receives one can check each byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace smdist::fuzzing {

constexpr size_t kMostPayload = 6 << 10;  // more than the staging buffer of a lane

// Return the payload of the message with this number, of which the first bytes are used, at most
// kMostPayload. It is in one table, since a loop over bytes takes longer than all else.
inline const uint8_t* pattern(uint64_t message) {
  static const auto table = [] {
    std::array<uint8_t, 256 + kMostPayload> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
    return bytes;
  }();
  return &table[message * 7 % 256];
}

}  // namespace smdist::fuzzing
