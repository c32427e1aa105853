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

// Decoded RTR frame: a peer has posted an operation. It may contain an eager message, either in the
// frame itself or in a block of the peer's shared memory.
struct RtrMessage {
  Descriptor descriptor;
  std::optional<SharedSumTicket> ticket;  // set if the peer can use shared memory for the operation
  const uint8_t* eager = nullptr;         // eager message in the frame; null: there is none
  size_t eager_bytes = 0;
  std::optional<BlockRef> eager_block;

  bool has_eager() const { return eager != nullptr || eager_block; }
};

// Decode the payload of an RTR frame; the result points into it. Throws PeerError.
RtrMessage decode_rtr(FrameType type, const std::vector<uint8_t>& payload);

}  // namespace smdist
