// SPDX-License-Identifier: Apache-2.0
// A pending operation, and how much of its plan is complete.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "collectives/plan.h"
#include "engine/shared_sum.h"
#include "engine/submission.h"
#include "memory/buffer_pool.h"
#include "smdist/transport.h"

namespace smdist {

// Stores which steps of the plan are complete, and runs the copies and reductions. A "member" is a
// rank in the group. A member is *ready* once it has posted the operation, too. Methods return
// Actions: what the engine has to send now.
//
// Thread safety: none.
class PendingOperation final {
 public:
  using Steps = std::vector<uint32_t>;
  // A message that a reduction reads directly from a block of the sender's shared memory.
  struct BorrowedBlock {
    int member = 0;
    uint32_t block = 0;
    const uint8_t* data = nullptr;
  };
  // Steps and blocks for which the engine has to send frames now.
  struct Actions {
    Steps sends;                          // Send steps whose messages can be sent now
    Steps credits;                        // Receive steps whose senders get a credit
    std::vector<BorrowedBlock> releases;  // blocks that have been read
  };

  // scratch: memory of plan.scratch_bytes bytes; the destructor returns it to the pool.
  PendingOperation(Submission submission, Buffer scratch, BufferPool& pool, Transport& transport);
  ~PendingOperation();
  PendingOperation(const PendingOperation&) = delete;
  PendingOperation& operator=(const PendingOperation&) = delete;

  // Run the operation as a sum in shared memory instead of its plan. replan() changes back to the
  // plan, which is possible until all members have joined the sum; call begin() afterwards.
  // end_sum() records that the sum is complete.
  void share(SharedSum& sum);
  // Return the sum in shared memory; null if the operation follows its plan.
  SharedSum* sum() { return sum_; }
  void replan(Buffer scratch);
  void end_sum();

  // Let the transport stop referring to the memory of the operation, which is about to be given
  // back.
  void detach_all();

  // Start all steps without dependencies. Call once, before all other methods that return Actions.
  Actions begin();
  // Return the Send step of an eager message to the member: the only message that waits for nothing
  // except that the member is ready, if it has at most `limit` bytes. None if there is no such
  // message. Call sent() when it has been sent.
  std::optional<uint32_t> take_eager(int member, size_t limit);
  // Record that the member has posted the operation.
  Actions member_ready(int member);
  // Record that the whole message of a Send step has been sent.
  Actions sent(uint32_t step);
  // Record a credit of the member for a message. Throws PeerError if the message needs no credit.
  Actions credited(int member, uint32_t tag);

  // Reserve the next bytes of a message for a frame, and return their memory. No other frame gets
  // the same bytes, also if it arrives over another lane meanwhile. offset: position of the bytes
  // in the message. Throws PeerError if other bytes are expected next.
  Span place(int member, uint32_t tag, uint64_t offset, uint64_t bytes);
  // Record that `bytes` bytes of a message have been written to the memory that place() returned.
  Actions arrived(int member, uint32_t tag, uint64_t bytes);
  // Use a whole message directly from a block, without a copy, if one reduction is its only reader.
  // Returns false if the message has to be copied. Call after place() and before arrived().
  bool borrow(uint32_t tag, uint64_t bytes, const BorrowedBlock& block);

  // Return the blocks that reductions have not read yet.
  std::vector<BorrowedBlock> borrowed() const;

  // Return whether all steps are complete and all members are ready. Without the second condition,
  // a mismatch among the members could stay undetected.
  bool is_done() const { return open_steps_ == 0 && unready_partners_ == 0; }
  // Return the length of the eager message that was sent to the member; 0 if there was none.
  size_t eager_bytes(int member) const { return members_[index(member)].eager_bytes; }
  // Return whether the member has posted the operation.
  bool is_ready(int member) const { return members_[index(member)].is_ready; }
  // Return whether data of the member have not been received yet.
  bool awaits_data_from(int member) const;
  // Return whether the operation cannot become complete without the member.
  bool needs(int member) const;
  // Return the member with this engine rank. Throws PeerError if the rank is not in the group.
  int member_of(int rank) const;
  // Return whether all members with which this rank exchanges messages have posted the operation.
  bool all_ready() const { return unready_partners_ == 0; }
  // Return the members with which this rank exchanges messages.
  std::vector<int> partners() const;
  // Return the members for which the operation waits: those that are not ready or, if all are
  // ready, those whose data are missing.
  std::vector<int> blocking_members() const;
  // Return whether all blocking members are ready, and so probably wait for other ranks themselves.
  bool is_blocked_by_ready_members() const;

  // Return a number that grows whenever data or credits arrive, or data have been sent.
  uint64_t num_events() const { return num_events_; }

  // Return the memory of the message that a Send step sends.
  Span message_of(uint32_t step) const;
  const Step& step(uint32_t index) const { return submission_.plan.steps[index]; }
  Submission& submission() { return submission_; }
  const Submission& submission() const { return submission_; }

 private:
  struct StepProgress {
    uint32_t waits_for = 0;  // number of steps and credits that must come before
    size_t reserved = 0;     // number of bytes for which place() has returned the memory
    size_t received = 0;     // number of received bytes, at most `reserved`
    Steps dependents;        // steps that wait for this one
  };
  struct Member {
    bool is_ready = false;
    bool is_partner = false;  // this rank exchanges messages with the member
    uint32_t open_sends = 0;
    uint32_t open_receives = 0;
    size_t eager_bytes = 0;  // length of the eager message that was sent to the member
    Steps blocked_sends;     // Send steps that wait until the member is ready
    Steps signals;           // Receive steps of empty messages
  };

  static size_t index(int member) { return static_cast<size_t>(member); }
  static uint64_t key(int member, uint32_t tag);
  uint8_t* address(const Region& region) const;
  const uint8_t* source_address(const Region& region) const;
  uint32_t receive_of(int member, uint32_t tag) const;
  void add_all_partners();
  void link_all();
  void link(uint32_t step);
  void start(uint32_t step, Actions& actions);
  void complete(uint32_t step, Actions& actions);
  void copy(const Step& step) const;
  void sum(const Step& step, Actions& actions);
  void reduce_stage(const Step& step, const std::vector<const void*>& sources, void* target) const;

  Submission submission_;
  BufferPool& pool_;
  Transport& transport_;
  Buffer scratch_;
  SharedSum* sum_ = nullptr;  // null: the operation follows its plan
  std::vector<StepProgress> progress_;
  std::vector<Member> members_;
  std::unordered_map<uint64_t, uint32_t> receives_;        // Receive steps by member and tag
  std::unordered_map<size_t, BorrowedBlock> borrowed_;     // blocks by offset in the scratch memory
  std::unordered_map<uint64_t, uint32_t> without_credit_;  // Send steps by member and tag
  size_t open_steps_ = 0;
  size_t unready_partners_ = 0;
  uint64_t num_events_ = 0;
};

}  // namespace smdist
