// SPDX-License-Identifier: Apache-2.0
// The table of pending operations, and the protocol that moves them on.
//
// The protocol. A rank that posts an operation sends an RTR frame, which describes the operation,
// to every member that it will exchange messages with (to all members, if the operation may be
// done in shared memory: see SharedSums). Data flow to a peer only after its RTR frame, so that
// every message has memory to go to.
//   * A RTR frame that comes before the local post waits in the unexpected queue.
//   * A short message that waits for nothing else goes with the RTR frame: an eager message. If
//     it comes before the local post, the receiver buffers it; what a sender may have buffered at
//     each peer is bounded.
//   * A message whose memory is still in use, by an earlier chunk that is not reduced yet, waits
//     for a credit.
// One fault fails all operations, here and, by ABORT frames, on all ranks. A fault is: descriptors
// that differ, a peer that is needed and gone, a frame that breaks the protocol, a deadline that
// is over, or a call of abort().
#pragma once

#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/block_reader.h"
#include "engine/callback_executor.h"
#include "engine/failure_detector.h"
#include "engine/fault_broadcast.h"
#include "engine/frame_sender.h"
#include "engine/matching.h"
#include "engine/operation_history.h"
#include "engine/pending_operation.h"
#include "engine/rank_names.h"
#include "engine/rtr_message.h"
#include "engine/shared_sums.h"
#include "engine/unexpected_queue.h"
#include "messaging/fault.h"
#include "smdist/transport.h"

namespace smdist {

// Takes each operation from post() to its end. Its parts decide (SharedSums, FailureDetector,
// Matching), remember (UnexpectedQueue, OperationHistory) and send (FrameSender); this class joins
// them, and is the only one that changes the table of operations.
//
// Thread safety: only the holder of the ProgressLock may call it; failure() is for any thread.
class ProgressEngine final : public Sink {
 public:
  ProgressEngine(const Options& options, Transport& transport, CallbackExecutor& callbacks);

  void post(Submission submission);
  // The group was removed.
  void forget_group(uint32_t group) { history_.forget(group); }
  // Fail all operations, on all ranks: the user asked for it, or this rank's own code failed.
  void abort(const Fault& fault) { fail(fault, true); }

  // Fail if the time of an operation or of a peer is over.
  void check_deadlines();
  std::chrono::milliseconds time_until_deadline() const;
  // Return whether nothing is pending here, and nothing has a deadline.
  bool is_quiet() const;

  // Move all sums in shared memory on, a little. Afterwards is_busy() says whether more can be
  // done at once.
  void advance_sums();
  bool is_busy() const { return is_busy_; }

  // The error that ended the engine; null if none has.
  std::exception_ptr failure() const { return faults_.failure(); }

  // Return whether there is a fault, and peers that may yet connect and learn of it.
  bool has_uninformed_peers() const { return faults_.has_uninformed_peers(); }

  // Fail what is pending here, and say goodbye to all peers.
  void leave();

  void on_connected(int peer) override;
  Span on_header(int peer, const HeaderBytes& header) override;
  void on_message(int peer, const HeaderBytes& header) override;
  void on_sent(int peer, uint64_t token) override;
  void on_peer_lost(int peer, const std::string& reason) override;

 private:
  // Beginning and end of operations
  void connect_to_all(const Group& group);
  void begin(Submission submission);
  void begin_all(std::vector<Submission> submissions);
  Buffer allocate_scratch(const Submission& submission);
  void send_rtr(PendingOperation& pending, int member);
  void take_unexpected(const OperationId& id);
  void perform(PendingOperation& pending, const PendingOperation::Actions& actions);
  void finish(const OperationId& id);
  void flush_all(const Group& group);
  PendingOperation* find(const OperationId& id);

  // Frames of peers
  void on_rtr(int rank, const Frame& frame);
  void on_data(int rank, const Frame& frame);
  void on_block(int rank, const Frame& frame);
  void on_credit(int rank, const Frame& frame);
  void on_abort(int rank);
  PendingOperation* planned_operation(int rank, const Frame& frame, const std::string& content);
  void accept_rtr(PendingOperation& pending, int rank, const Descriptor& theirs,
                  const std::optional<SharedSumTicket>& ticket);
  void deliver_eager(PendingOperation& pending, int rank, const Frame& frame,
                     const RtrMessage& ready);
  BufferedMessage buffer_eager(int rank, const Frame& frame, const RtrMessage& ready);
  void deliver_copy(PendingOperation& pending, int rank, uint32_t tag, const uint8_t* bytes,
                    size_t count);
  void deliver_block(PendingOperation& pending, int rank, const Frame& frame,
                     const BlockRef& block);
  bool fail_if_past(int rank, const OperationId& id, const Descriptor& theirs);
  void fail_if_past_differs(int rank, const OperationId& id, const Descriptor& theirs);
  void replan(PendingOperation& pending);

  // Faults
  void check_partners();
  void fail_if(const std::optional<Fault>& fault);
  void fail(const Fault& fault, bool is_found_here);
  void fail_all();
  const std::exception_ptr& error() const { return faults_.error(); }

  std::vector<uint8_t>& payload(int rank) { return payloads_[static_cast<size_t>(rank)]; }

  const Options& options_;
  const RankNames names_;
  Transport& transport_;
  CallbackExecutor& callbacks_;

  BufferPool pool_;
  std::map<OperationId, PendingOperation> pending_;
  uint64_t last_serial_ = 0;
  Matching matching_;
  UnexpectedQueue unexpected_;
  OperationHistory history_;
  SharedSums sums_;
  FrameSender sender_;
  BlockReader blocks_;
  FailureDetector detector_;
  FaultBroadcast faults_;
  std::vector<std::vector<uint8_t>> payloads_;  // by peer: of the frame that comes in, if not kData
  bool is_busy_ = false;
};

}  // namespace smdist
