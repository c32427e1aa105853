// SPDX-License-Identifier: Apache-2.0
// One operation on its way through its plan.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "collectives/plan.h"
#include "engine/request.h"
#include "engine/shared_sum.h"
#include "memory/buffer_pool.h"
#include "messaging/descriptor.h"
#include "messaging/operation_id.h"
#include "smdist/operation.h"

namespace smdist {

using Clock = std::chrono::steady_clock;

// An operation with all that follows from it.
struct Submission {
  std::shared_ptr<Group> group;
  OperationId id;
  uint64_t serial = 0;  // of all that this engine has begun
  Operation operation;
  Descriptor descriptor;
  Choice choice;
  Plan plan;  // none as long as it is a sum in shared memory, or may be one
  Clock::time_point deadline;
  bool is_extended = false;  // the deadline was moved, once

  bool may_be_shared() const { return choice.is_shareable; }
  Descriptor descriptor_to(int member) const {
    return descriptor_for(descriptor, operation, member, group->size());
  }
  void make_plan() { plan = plan_of(operation, *group, choice); }
};

// Knows which steps are done and does those that need no other rank. "Member"
// is a rank in the group. Methods that return moves say what may leave now: sends
// whose dependencies are done and whose receiver is ready, and grants to the
// senders of messages that have a place now.
//
// Thread safety: none.
class Pending final {
 public:
  using Steps = std::vector<uint32_t>;
  // A message that lies in its sender's arena until a sum has read it.
  struct Lease {
    int member = 0;
    uint32_t block = 0;
    const uint8_t* data = nullptr;
  };
  struct Moves {
    Steps sends;
    Steps grants;  // receives
    std::vector<Lease> releases;
  };

  // Gives the scratch memory back to the pool at the end.
  Pending(Submission submission, Buffer scratch, BufferPool& pool);
  ~Pending();
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  // It is a sum in shared memory instead, which may end before it has begun: replan().
  void share(SharedSum& sum);
  SharedSum* sum() { return sum_; }
  void replan(Buffer scratch);  // call begin() afterwards
  void end_sum();

  Moves begin();  // first call, once
  // The one message that waits for nothing but the member's being ready, if it is not
  // longer than `limit`. It is on its way from then on: call sent() later.
  std::optional<uint32_t> take_rider(int member, size_t limit);
  Moves member_ready(int member);  // it has posted the operation, too
  Moves sent(uint32_t step);       // the whole message has left its memory
  // The member has a place for this message now. Throws PeerError if it had no need to say so.
  Moves granted(int member, uint32_t tag);

  // Where the next part of a message belongs. Throws PeerError if no such part
  // is expected.
  Span place(int member, uint32_t tag, uint64_t offset, uint64_t bytes) const;
  Moves arrived(int member, uint32_t tag, uint64_t bytes);
  // A whole message that place() has accepted need not be copied, if only a sum
  // reads it: the sum will read it where it is. False: copy it. Call before arrived().
  bool lend(uint32_t tag, uint64_t bytes, const Lease& lease);

  // No operation ends before all have met, so that all hear of it if they disagree.
  bool is_done() const { return open_steps_ == 0 && unready_partners_ == 0; }
  size_t rider_bytes(int member) const { return members_[index(member)].rider_bytes; }
  bool is_ready(int member) const { return members_[index(member)].is_ready; }
  bool owes_us(int member) const;
  bool needs(int member) const;       // to become complete
  int member_of(int rank) const;      // of an engine rank. Throws PeerError if it is none
  std::vector<int> partners() const;  // members that we exchange messages with
  std::vector<int> missing() const;   // members that keep us waiting
  bool is_stuck_elsewhere() const;    // all of those have posted, and wait for others

  // The memory of the message that a step sends.
  Span message_of(uint32_t step) const;
  const Step& step(uint32_t index) const { return submission_.plan.steps[index]; }
  Submission& submission() { return submission_; }
  const Submission& submission() const { return submission_; }

 private:
  struct Progress {
    uint32_t waits_for = 0;  // steps
    size_t received = 0;     // bytes
    Steps dependents;
  };
  struct Member {
    bool is_ready = false;
    bool is_partner = false;
    uint32_t open_sends = 0;
    uint32_t open_receives = 0;
    size_t rider_bytes = 0;  // of a message that did not wait for it to be ready
    Steps blocked_sends;     // wait for the member to be ready
    Steps signals;           // receives of empty messages
  };

  static size_t index(int member) { return static_cast<size_t>(member); }
  static uint64_t key(int member, uint32_t tag);
  uint8_t* address(const Region& region) const;
  uint32_t receive_of(int member, uint32_t tag) const;
  bool keeps_waiting(int member) const;
  void expect_all();
  void link_all();
  void link(uint32_t step);
  void start(uint32_t step, Moves& moves);
  void complete(uint32_t step, Moves& moves);
  void copy(const Step& step) const;
  void sum(const Step& step, Moves& moves);
  void reduce_stage(const Step& step, const std::vector<const void*>& sources, void* target) const;
  const void* source_address(const Region& region) const;

  Submission submission_;
  BufferPool& pool_;
  Buffer scratch_;
  SharedSum* sum_ = nullptr;
  std::vector<Progress> progress_;
  std::vector<Member> members_;
  std::unordered_map<uint64_t, uint32_t> receives_;   // by member and tag
  std::unordered_map<size_t, Lease> lent_;            // by offset in scratch
  std::unordered_map<uint64_t, uint32_t> ungranted_;  // sends
  size_t open_steps_ = 0;
  size_t unready_partners_ = 0;
};

}  // namespace smdist
