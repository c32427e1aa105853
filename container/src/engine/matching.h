// SPDX-License-Identifier: Apache-2.0
// Matching of receives and sends.
#pragma once

#include <list>
#include <map>
#include <utility>
#include <vector>

#include "engine/submission.h"
#include "engine/unexpected_queue.h"

namespace smdist {

// Decides which receive takes which send. A channel has one sender, one receiver and one tag. Its
// sends are numbered in the order of submission, and so are its receives; equal numbers match. A
// receive from any rank gets its channel and number when a peer announces a send that no earlier
// receive takes. Until then it waits here, and every later receive with the same tag waits behind
// it.
//
// Thread safety: none.
class Matching final {
 public:
  // Assign a number to a send or receive. Returns the operations that can begin: this one, or none
  // if it has to wait.
  std::vector<Submission> post(Submission submission, const UnexpectedQueue& unexpected);

  // Record that a peer has announced a send. ours: id of the receive that takes it. Returns the
  // receives that can begin now.
  std::vector<Submission> announce(const OperationId& ours);

  // Return whether an operation with this id was ever posted here.
  bool was_posted(const OperationId& ours) const;

  // Return the receives that wait for a matching send.
  const std::list<Submission>& waiting() const { return waiting_; }
  std::list<Submission> take_waiting() { return std::exchange(waiting_, {}); }

 private:
  void number(Submission& submission, int peer);
  bool is_behind_another(const std::list<Submission>::iterator& receive);

  std::map<OperationId, uint64_t> next_;  // by id with sequence 0
  std::list<Submission> waiting_;
};

}  // namespace smdist
