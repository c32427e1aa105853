// SPDX-License-Identifier: Apache-2.0
// Which receive takes which send.
#pragma once

#include <list>
#include <map>
#include <utility>
#include <vector>

#include "engine/announced.h"
#include "engine/pending.h"

namespace smdist {

// Sends of a channel are numbered as they are posted, and so are its receives:
// the same number meets. A receive from any rank gets its channel and number when
// a send is announced that no earlier receive is for; until then it waits here,
// and behind it every later receive with its tag.
//
// Thread safety: none.
class Matching final {
 public:
  // Numbers a send or receive. Returns what can begin: it, or nothing if it waits.
  std::vector<Submission> post(Submission submission, const Announced& announced);

  // A peer has announced a send. Returns the receives that can begin by that.
  std::vector<Submission> announce(const OperationId& ours);

  // Whether an operation of this id was posted here, at any time.
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
