// SPDX-License-Identifier: Apache-2.0
// The unexpected queue: operations that peers have posted before this rank has.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "messaging/descriptor.h"
#include "messaging/operation_id.h"
#include "messaging/shared_sum_ticket.h"

namespace smdist {

// Bytes of eager messages from one peer that may wait in this queue. A sender counts what it has
// there and sends no more, so that the memory of the receiver is bounded.
constexpr size_t kMaxEagerBytesPerPeer = 256 << 10;

// An eager message that waits until this rank posts its operation, too.
struct BufferedMessage {
  uint32_t tag = 0;
  std::vector<uint8_t> bytes;  // empty: no message came with the RTR frame
};

// An RTR frame that came before the local post.
struct UnexpectedRtr {
  Descriptor descriptor;
  BufferedMessage eager;
  std::optional<SharedSumTicket> ticket;  // the peer offers to do the operation in shared memory
};

// RTR frames by operation and peer, in the order of their arrival.
//
// Thread safety: none.
class UnexpectedQueue final {
 public:
  using ByRank = std::map<int, UnexpectedRtr>;  // by engine rank

  explicit UnexpectedQueue(int num_ranks) : usage_(static_cast<size_t>(num_ranks)) {}

  // Throws PeerError if the peer has announced this operation before, or is too far ahead.
  void add(const OperationId& ours, int peer, UnexpectedRtr ready);

  // Remove the operation and return what came for it.
  ByRank take(const OperationId& ours);

  // The rank whose send with this tag came first, among sends without a posted receive.
  // members: the engine ranks that may send.
  std::optional<int> first_sender(uint32_t group, uint32_t channel,
                                  const std::vector<int>& members) const;

  void clear();

 private:
  struct EarlyFrames {
    ByRank ready;
    uint64_t arrival = 0;  // of its first RTR frame
  };
  struct Usage {
    size_t frames = 0;
    size_t bytes = 0;
  };

  Usage& usage_of(int peer) { return usage_[static_cast<size_t>(peer)]; }

  std::map<OperationId, EarlyFrames> operations_;
  std::vector<Usage> usage_;  // by peer
  uint64_t num_arrivals_ = 0;
};

}  // namespace smdist
