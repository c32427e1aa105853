// SPDX-License-Identifier: Apache-2.0
// Matches receives and sends.
#pragma once

#include <list>
#include <map>
#include <utility>
#include <vector>

#include "engine/submission.h"
#include "engine/unexpected_queue.h"

namespace smdist {

// Sends of a channel (one sender, one receiver, one tag) are numbered in the order of their posts,
// and so are its receives; equal numbers match. A receive from any rank gets its channel and number
// when a send is announced that no earlier receive takes. Until then it waits here, and every later
// receive with the same tag waits behind it.
//
// Thread safety: none.
class Matching final {
 public:
  // Number a send or receive. Returns what can begin: this operation, or nothing if it waits.
  std::vector<Submission> post(Submission submission, const UnexpectedQueue& unexpected);

  // A peer has announced a send. Returns the receives that can begin now.
  std::vector<Submission> announce(const OperationId& ours);

  // Return whether an operation with this id was ever posted here.
  bool was_posted(const OperationId& ours) const;

  const std::list<Submission>& waiting() const { return waiting_; }
  std::list<Submission> take_waiting() { return std::exchange(waiting_, {}); }

 private:
  void number(Submission& submission, int peer);
  bool is_behind_another(const std::list<Submission>::iterator& receive);

  std::map<OperationId, uint64_t> next_;  // by id with sequence 0
  std::list<Submission> waiting_;
};

}  // namespace smdist
