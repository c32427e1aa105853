// SPDX-License-Identifier: Apache-2.0
// Content of an RTR frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "messaging/block_ref.h"
#include "messaging/descriptor.h"
#include "messaging/frame.h"
#include "messaging/shared_sum_ticket.h"

namespace smdist {

// News that a peer has posted an operation. An eager message may have come with it, either inside
// of the frame or in a block of the peer.
struct RtrMessage {
  Descriptor descriptor;
  std::optional<SharedSumTicket> ticket;  // the peer offers to do the operation in shared memory
  const uint8_t* eager = nullptr;         // inside of the payload; null: none is there
  size_t eager_bytes = 0;
  std::optional<BlockRef> eager_block;

  bool has_eager() const { return eager != nullptr || eager_block; }
};

// Decode the payload of an RTR frame; the result points into it. Throws PeerError.
RtrMessage decode_rtr(FrameType type, const std::vector<uint8_t>& payload);

}  // namespace smdist
