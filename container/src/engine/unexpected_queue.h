// SPDX-License-Identifier: Apache-2.0
// The unexpected queue: operations that peers have posted before this rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "messaging/descriptor.h"
#include "messaging/operation_id.h"
#include "messaging/shared_sum_ticket.h"

namespace smdist {

// Maximum number of bytes of eager messages from one peer in this queue. The sender counts them and
// does not exceed the limit, so that the memory of the receiver is bounded.
constexpr size_t kMaxEagerBytesPerPeer = 256 << 10;

// An eager message that is buffered until this rank posts its operation.
struct BufferedMessage {
  uint32_t tag = 0;
  std::vector<uint8_t> bytes;  // empty: the RTR frame had no eager message
};

// An RTR frame that arrived before this rank posted the operation.
struct UnexpectedRtr {
  Descriptor descriptor;
  BufferedMessage eager;
  std::optional<SharedSumTicket> ticket;  // set if the peer can use shared memory for the operation
};

// Stores RTR frames by operation and peer, and the order in which they arrived.
//
// Thread safety: none.
class UnexpectedQueue final {
 public:
  using ByRank = std::map<int, UnexpectedRtr>;  // by engine rank

  explicit UnexpectedQueue(int num_ranks) : usage_(static_cast<size_t>(num_ranks)) {}

  // Add an RTR frame. ours: this rank's id of the operation. Throws PeerError if the peer has
  // announced the operation before, or if its frames exceed the limits.
  void add(const OperationId& ours, int peer, UnexpectedRtr ready);

  // Remove the RTR frames of an operation and return them.
  ByRank take(const OperationId& ours);

  // Return the RTR frame of the lowest rank for an operation; null if there is none.
  const UnexpectedRtr* find(const OperationId& ours) const;

  // Return the engine rank whose send with this tag was announced first, among sends without a
  // posted receive; none if there is none. members: the engine ranks that may send.
  std::optional<int> first_sender(uint32_t group, uint32_t channel,
                                  const std::vector<int>& members) const;

  // Remove the RTR frames of all operations of a call, and return the engine ranks of their
  // senders.
  std::set<int> drop_call(const OperationId& ours);

  void clear();

 private:
  // RTR frames of one operation.
  struct EarlyFrames {
    ByRank ready;
    uint64_t arrival = 0;  // position of its first frame in the order of arrival
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
