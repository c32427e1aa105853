// SPDX-License-Identifier: Apache-2.0
// One operation on its way through its plan.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "collectives/plan.h"
#include "engine/shared_sum.h"
#include "engine/submission.h"
#include "memory/buffer_pool.h"

namespace smdist {

// Knows which steps of the plan are done, and does those that need no other rank. A "member" is a
// rank in the group. A member is *ready* once it has posted the operation, too. Methods that
// return Actions say what the engine has to send now.
//
// Thread safety: none.
class PendingOperation final {
 public:
  using Steps = std::vector<uint32_t>;
  // A message that stays in a block of its sender until a reduction has read it.
  struct BorrowedBlock {
    int member = 0;
    uint32_t block = 0;
    const uint8_t* data = nullptr;
  };
  struct Actions {
    Steps sends;                          // whose dependencies are done and whose receiver is ready
    Steps credits;                        // receives that have memory now: their senders may send
    std::vector<BorrowedBlock> releases;  // blocks that have been read
  };

  // Gives the scratch memory back to the pool at the end.
  PendingOperation(Submission submission, Buffer scratch, BufferPool& pool);
  ~PendingOperation();
  PendingOperation(const PendingOperation&) = delete;
  PendingOperation& operator=(const PendingOperation&) = delete;

  // Do the operation as a sum in shared memory, instead of by the plan. replan() goes back to a
  // plan while not all members have joined the sum; call begin() after it.
  void share(SharedSum& sum);
  SharedSum* sum() { return sum_; }
  void replan(Buffer scratch);
  void end_sum();

  // Call once, before all other methods that return Actions.
  Actions begin();
  // Choose an eager message: the only message to the member that waits for nothing but the member
  // being ready, if it is not longer than `limit`. It counts as being sent; call sent() later.
  std::optional<uint32_t> take_eager(int member, size_t limit);
  // The member has posted the operation.
  Actions member_ready(int member);
  // The whole message of a send has left its memory.
  Actions sent(uint32_t step);
  // The member has memory for this message now. Throws PeerError if the message needs no credit.
  Actions credited(int member, uint32_t tag);

  // Memory for the next part of a message. Throws PeerError if no such part is expected.
  Span place(int member, uint32_t tag, uint64_t offset, uint64_t bytes) const;
  // A part of a message is in its place.
  Actions arrived(int member, uint32_t tag, uint64_t bytes);
  // Use a whole message that place() has accepted where it lies, without a copy, if one reduction
  // is its only reader. Returns false if it has to be copied. Call before arrived().
  bool borrow(uint32_t tag, uint64_t bytes, const BorrowedBlock& block);

  // An operation ends only when all members are ready, so that members that disagree all hear of
  // that.
  bool is_done() const { return open_steps_ == 0 && unready_partners_ == 0; }
  size_t eager_bytes(int member) const { return members_[index(member)].eager_bytes; }
  bool is_ready(int member) const { return members_[index(member)].is_ready; }
  bool awaits_data_from(int member) const;
  // Return whether the operation cannot become complete without the member.
  bool needs(int member) const;
  // The member with this engine rank. Throws PeerError if there is none.
  int member_of(int rank) const;
  // Members that we exchange messages with.
  std::vector<int> partners() const;
  // Members that keep the operation waiting: those that are not ready, if there are any.
  std::vector<int> blocking_members() const;
  // Return whether all blocking members are ready, and so wait for other ranks themselves.
  bool is_blocked_by_ready_members() const;

  // The memory of the message that a step sends.
  Span message_of(uint32_t step) const;
  const Step& step(uint32_t index) const { return submission_.plan.steps[index]; }
  Submission& submission() { return submission_; }
  const Submission& submission() const { return submission_; }

 private:
  struct StepProgress {
    uint32_t waits_for = 0;  // steps
    size_t received = 0;     // bytes
    Steps dependents;
  };
  struct Member {
    bool is_ready = false;
    bool is_partner = false;
    uint32_t open_sends = 0;
    uint32_t open_receives = 0;
    size_t eager_bytes = 0;  // of a message that was sent before the member was ready
    Steps blocked_sends;     // wait for the member to be ready
    Steps signals;           // receives of empty messages
  };

  static size_t index(int member) { return static_cast<size_t>(member); }
  static uint64_t key(int member, uint32_t tag);
  uint8_t* address(const Region& region) const;
  const uint8_t* source_address(const Region& region) const;
  uint32_t receive_of(int member, uint32_t tag) const;
  bool is_blocking(int member) const;
  void expect_all();
  void link_all();
  void link(uint32_t step);
  void start(uint32_t step, Actions& actions);
  void complete(uint32_t step, Actions& actions);
  void copy(const Step& step) const;
  void sum(const Step& step, Actions& actions);
  void reduce_stage(const Step& step, const std::vector<const void*>& sources, void* target) const;

  Submission submission_;
  BufferPool& pool_;
  Buffer scratch_;
  SharedSum* sum_ = nullptr;  // null: the operation follows its plan
  std::vector<StepProgress> progress_;
  std::vector<Member> members_;
  std::unordered_map<uint64_t, uint32_t> receives_;        // by member and tag
  std::unordered_map<size_t, BorrowedBlock> borrowed_;     // by offset in scratch
  std::unordered_map<uint64_t, uint32_t> without_credit_;  // sends, by member and tag
  size_t open_steps_ = 0;
  size_t unready_partners_ = 0;
};

}  // namespace smdist
