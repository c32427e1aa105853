// SPDX-License-Identifier: Apache-2.0
// Frames by which a lane tells its peer how many bytes it has received. Only lanes see them.
//
//   byte  0  u32 magic "SMDA"
//         4  zeros
//         8  u64 bytes of the lane that the sender has received
//        16  zeros
#pragma once

#include <algorithm>

#include "base/little_endian.h"
#include "smdist/errors.h"
#include "smdist/transport.h"

namespace smdist {

constexpr uint32_t kAcknowledgementMagic = 0x41444d53;
constexpr size_t kAcknowledgedAt = 8;

inline HeaderBytes acknowledgement_of(uint64_t received) {
  HeaderBytes header{};
  put<uint32_t>(header.data(), kAcknowledgementMagic);
  put<uint64_t>(&header[kAcknowledgedAt], received);
  return header;
}

inline bool is_acknowledgement(const HeaderBytes& header) {
  return get<uint32_t>(header.data()) == kAcknowledgementMagic;
}

// Return the number of bytes. Throws PeerError if the frame is malformed.
inline uint64_t acknowledged_in(const HeaderBytes& header) {
  const uint64_t received = get<uint64_t>(&header[kAcknowledgedAt]);
  if (acknowledgement_of(received) != header) {
    throw PeerError("sent a malformed acknowledgement of bytes");
  }
  return received;
}

}  // namespace smdist
