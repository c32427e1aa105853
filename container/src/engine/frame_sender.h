// SPDX-License-Identifier: Apache-2.0
// Sending of frames and messages to peers.
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

// Builds frames, and queues the messages of operations. A message is sent in fragments: directly
// from the caller's memory, or through blocks of shared memory if the peer can read this rank's
// arena. Only a few fragments are in flight at a time, so that the messages of several operations
// interleave.
//
// Thread safety: none.
class FrameSender final {
 public:
  // A message that has been sent entirely, so that its memory may be reused.
  struct SentMessage {
    OperationId id;
    uint32_t step;
  };

  // blocks: the part of this rank's arena from which peers read messages; may be empty.
  FrameSender(const Options& options, Transport& transport, const Span& blocks);

  // Send a frame with a short payload, which is copied. token: passed to on_sent() afterwards; 0:
  // no call.
  void send(int rank, Frame frame, std::string payload = {}, uint64_t token = 0);

  // Send an RTR frame to a member: this rank has posted the operation and has memory for its
  // messages. A short message without other dependencies is sent in the same frame, as an eager
  // message.
  void send_rtr(PendingOperation& pending, int member);
  // Send an RTR frame for a sum in shared memory, with the ticket of this rank's reduction buffer.
  void send_rtr(const PendingOperation& pending, int member, const SharedSumTicket& ticket);
  // Send a credit to the sender of a message: this rank has memory for the message now.
  void send_credit(const PendingOperation& pending, uint32_t receive);
  // Send a RELEASE_BLOCK frame to a peer: this rank has read its block.
  void send_release(int rank, uint32_t block);

  // Queue the message of a Send step; send_queued() sends it.
  void queue(const PendingOperation& pending, uint32_t step);
  // Send queued messages to a peer, up to the limit of fragments in flight and of free blocks.
  void send_queued(int rank);

  // Record that a fragment has been sent. Returns its message if that was the last fragment, else
  // none.
  std::optional<SentMessage> on_sent(int rank, uint64_t token);
  // Record that a peer has posted the operation, so that it buffers no eager message of this rank
  // for it any more. eager_bytes: length of that message.
  void on_rtr(int rank, size_t eager_bytes) { peer(rank).eager_bytes -= eager_bytes; }
  // Record that a peer has read a block. Throws PeerError if the peer did not hold that block.
  void on_release(int rank, uint32_t block);
  void on_peer_lost(int rank);

  // Drop the messages of all operations of a call, which has ended. The transport must have stopped
  // using their memory.
  void drop_call(const OperationId& call);
  // Drop all messages, because the engine has failed.
  void clear();

 private:
  struct PeerOutput {
    SendQueue send_queue;
    uint32_t fragments_in_flight = 0;
    uint32_t last_lane = 0;
    size_t eager_bytes = 0;  // eager messages of this rank that the peer may have to buffer
  };
  // A fragment or an eager message that has been passed to the transport.
  struct InFlight {
    SentMessage message;
    bool is_last;      // the last fragment of the message
    bool is_fragment;  // sent from the caller's memory; false: through a block
    int rank;          // the receiver
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
  std::optional<BlockPool> blocks_;  // blocks of this rank's arena, if there is one
  std::unordered_map<uint64_t, InFlight> in_flight_;  // by token
  uint64_t last_token_ = 0;
};

}  // namespace smdist
