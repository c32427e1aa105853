// SPDX-License-Identifier: Apache-2.0
// The table of pending operations, and the protocol by which ranks run them together.
//
// A rank that posts an operation sends an RTR frame with the operation's descriptor to every member
// with which it will exchange messages (to all members, if the operation may use shared memory: see
// SharedSums). Data are sent to a peer only after its RTR frame, so that there is memory for every
// message.
//   * An RTR frame that arrives before this rank has posted the operation waits in the unexpected
//     queue.
//   * A short message without dependencies is sent in the RTR frame, as an eager message. If it
//     arrives before the receiver has posted the operation, the receiver buffers it. The number of
//     bytes that a sender can have buffered at each peer is limited.
//   * A message whose memory is still in use, by an earlier chunk that is not reduced yet, waits
//     for a credit.
// One fault ends all operations, here and, through ABORT frames, on all ranks. Faults are: the loss
// of a peer that is needed, a frame that breaks the protocol, a deadline that has passed, and a
// call of abort(). Descriptors that differ end only the operations of their call, through MISMATCH
// frames (progress_engine_mismatch.cc).
#pragma once

#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/block_reader.h"
#include "engine/callback_executor.h"
#include "engine/disagreements.h"
#include "engine/failure_detector.h"
#include "engine/fault_broadcast.h"
#include "engine/flight_recorder.h"
#include "engine/frame_sender.h"
#include "engine/late_watch.h"
#include "engine/matching.h"
#include "engine/operation_history.h"
#include "engine/pending_operation.h"
#include "engine/rank_names.h"
#include "engine/rtr_message.h"
#include "engine/shared_sums.h"
#include "engine/unexpected_queue.h"
#include "messaging/fault.h"
#include "smdist/announced.h"
#include "smdist/transport.h"

namespace smdist {

// Runs each operation from post() to its end. It uses classes that make decisions (SharedSums,
// FailureDetector, Matching), store received data (UnexpectedQueue, OperationHistory) and send
// (FrameSender), and it is the only class that changes the table of operations.
//
// Thread safety: only the holder of the ProgressLock may call the methods; any thread may call
// failure() and last_error(), and use recorder().
class ProgressEngine final : public Sink {
 public:
  ProgressEngine(const Options& options, Transport& transport, CallbackExecutor& callbacks);

  // Begin an operation that a caller has submitted.
  void post(Submission submission);
  // Call `found` once a peer has posted the collective `id`, which this rank has not posted.
  void watch(const OperationId& id, OnAnnounced found);
  // Remove what is stored about the group, because the group was removed.
  void forget_group(uint32_t group) { history_.forget(group); }
  // Fail all operations on all ranks, because the user called abort() or an exception was thrown
  // here.
  void abort(const Fault& fault) { fail(fault, true); }

  // Fail all operations if the deadline of one, or the grace period of a needed peer, has passed.
  void check_deadlines();
  // Return the time until check_deadlines() has something to do, at most one minute.
  std::chrono::milliseconds time_until_deadline() const;
  // Return whether no operation is pending here, and no deadline is set.
  bool is_quiet() const;

  // Process a few chunks of each sum in shared memory. Afterwards is_busy() returns whether more
  // chunks can be processed without waiting.
  void advance_sums();
  bool is_busy() const { return is_busy_; }

  // Return the error that ended the engine; null if there is none.
  std::exception_ptr failure() const { return faults_.failure(); }

  // Return the error of the operation that ended last: see Engine.
  std::exception_ptr last_error() const { return faults_.last_error(); }

  // Return the last operations; any thread may call its methods.
  const FlightRecorder& recorder() const { return recorder_; }

  // Return whether there is a fault, or a call about which ranks disagree, and a peer that has not
  // connected yet and so has not received it.
  bool has_uninformed_peers() const;

  // Fail all operations that are pending here, and send a LEAVE frame to all connected peers.
  void leave();

  void on_connected(int peer) override;
  Span on_header(int peer, const HeaderBytes& header) override;
  Span on_extra_lane_header(int peer, const HeaderBytes& header) override;
  void on_message(int peer, const HeaderBytes& header) override;
  void on_sent(int peer, uint64_t token) override;
  void on_altered(int peer, const std::string& reason) override;
  void on_peer_lost(int peer, const std::string& reason) override;
  bool may_reconnect(int peer) const override { return !error() && !detector_.has_left(peer); }

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
  void complete(Submission& submission, const std::exception_ptr& error);
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
  void replan(PendingOperation& pending);

  // Collectives that this rank has not posted
  void tell_announced(const OperationId& id, const Announced& announced);
  void refuse(const Submission& submission);

  // Calls about which ranks disagree
  bool has_ended_early(Submission& submission);
  void end_call(OperationId id, const Fault& reason, std::set<int> informed);
  void end_early(PendingOperation& pending, const Fault& reason, std::set<int>& informed);
  void release_payloads(const OperationId& id);
  void send_mismatch(int rank, const OperationId& id, const Fault& reason);
  void on_mismatch(int rank, const Frame& frame);
  bool is_past(int rank, const OperationId& id, const RtrMessage& ready);
  void report_if_differs(int rank, const OperationId& id, const Descriptor& theirs);
  void discard_eager(int rank, const RtrMessage& ready);

  // Late ranks
  void report_late(Clock::time_point now);
  void look_for_late(PendingOperation& pending, Clock::time_point now);
  LateReport report_of(const PendingOperation& pending, Clock::time_point now);
  LateRanks late_ranks_of(const PendingOperation& pending, Clock::time_point now);
  void pass_on(const LateWatch::Due& given, Clock::time_point now);
  static void drop_arrived(const PendingOperation& pending, LateRanks& ranks);
  int receiver_of(const PendingOperation& pending, const LateRanks& late) const;
  void on_late(int rank, const Frame& frame);
  void ask_whether_waiting(const PendingOperation& pending, Clock::time_point now);
  void answer(int rank, const OperationId& id);
  void send_report(int receiver, const OperationId& id, const LateReport& report);

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
  std::map<OperationId, OnAnnounced> watched_;  // collectives that this rank has not posted
  uint64_t last_serial_ = 0;
  Matching matching_;
  UnexpectedQueue unexpected_;
  OperationHistory history_;
  Disagreements disagreements_;
  SharedSums sums_;
  FrameSender sender_;
  BlockReader blocks_;
  FailureDetector detector_;
  LateWatch late_;
  FlightRecorder recorder_;
  FaultBroadcast faults_;
  std::vector<std::vector<uint8_t>>
      payloads_;  // payload of the frame that lane 0 receives now, by peer; not for kData
  std::set<int> awaiting_mismatch_;        // peers to be informed that were not connected then
  Clock::time_point turn_ = Clock::now();  // time of the last call of check_deadlines()
  uint64_t num_sum_chunks_ = 0;  // number of times that a sum in shared memory has moved forward
  bool is_busy_ = false;
};

}  // namespace smdist
