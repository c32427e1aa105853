// SPDX-License-Identifier: Apache-2.0
// Everything that this rank sends to its peers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/pending_operation.h"
#include "memory/block_pool.h"
#include "messaging/frame.h"
#include "messaging/send_queue.h"
#include "messaging/shared_sum_ticket.h"
#include "smdist/transport.h"

namespace smdist {

// Builds frames, and queues the messages of operations. A message leaves in chunks, straight from
// the caller's memory, or through blocks of shared memory if the peer can read this rank's arena.
// Few chunks are in flight at a time, so that the messages of several operations interleave.
//
// Thread safety: none.
class FrameSender final {
 public:
  // A message whose last byte has left the caller's memory.
  struct SentMessage {
    OperationId id;
    uint32_t step;
  };

  // blocks: the part of this rank's arena that peers read messages from; may be empty.
  FrameSender(const Options& options, Transport& transport, const Span& blocks);

  // Send a frame that is short enough to be copied. on_sent() gets the token, unless it is 0.
  void send(int rank, Frame frame, std::string payload = {}, uint64_t token = 0);

  // Tell a member that this rank has posted the operation and has memory for its messages: a
  // RTR frame. A short message that waits for nothing else goes with it, as an eager message.
  void send_rtr(PendingOperation& pending, int member);
  // Send an RTR frame for a sum in shared memory, with a ticket that says where this rank takes
  // part.
  void send_rtr(const PendingOperation& pending, int member, const SharedSumTicket& ticket);
  // Tell the sender of a message that this rank has memory for it now: a credit.
  void send_credit(const PendingOperation& pending, uint32_t receive);
  // Tell a peer that its block has been read.
  void send_release(int rank, uint32_t block);

  // Queue the message of a send. It leaves with this send_queued() of its peer, or a later one.
  void queue(const PendingOperation& pending, uint32_t step);
  void send_queued(int rank);

  // The message that has left its memory by this; none if only a part of it has.
  std::optional<SentMessage> on_sent(int rank, uint64_t token);
  // A peer has posted the operation, and buffers no eager message of it any longer.
  void on_rtr(int rank, size_t eager_bytes) { peer(rank).eager_bytes -= eager_bytes; }
  // A peer has read a block. Throws PeerError if it did not hold that block.
  void on_release(int rank, uint32_t block);
  void on_peer_lost(int rank);

  // The engine has failed: forget all messages.
  void clear();

 private:
  struct PeerOutput {
    SendQueue send_queue;
    uint32_t fragments_in_flight = 0;
    uint32_t last_lane = 0;
    size_t eager_bytes = 0;  // of ours that the peer may have to buffer
  };
  struct InFlight {
    SentMessage message;
    bool is_last;      // part of the message
    bool is_fragment;  // or else a frame that refers to a block
  };

  PeerOutput& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  bool shares_blocks_with(int rank) { return blocks_ && transport_.is_read_by(rank); }
  std::optional<uint32_t> take_eager(PendingOperation& pending, int member);
  uint32_t next_lane(int rank, size_t bytes);
  uint64_t track(const InFlight& part);
  void send_fragment(int rank);
  void send_block(int rank);

  const Options& options_;
  Transport& transport_;
  std::vector<PeerOutput> peers_;
  std::optional<BlockPool> blocks_;                   // of this rank's arena, if there is one
  std::unordered_map<uint64_t, InFlight> in_flight_;  // by token
  uint64_t last_token_ = 0;
};

}  // namespace smdist
