// SPDX-License-Identifier: Apache-2.0
// A rank without more data, which lets the others go on ("join" in Horovod).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "smdist/engine.h"

namespace smdist {

// Takes part with zeros in the all-reduces that the other ranks of some groups call, until all of
// them have joined.
//
// This rank learns of each all-reduce by the RTR frame of another rank, and submits the same one
// over zeros. So ranks send no further message for it, and all-reduces overlap as ever. Every
// collective needs all ranks of its group, so some rank announces it to this one. An all-gather in
// the group `control`, which ends when all ranks have joined, exchanges how many collectives each
// of them had submitted; a rank returns when it has answered as many as the last one, and after a
// barrier.
//
//   rank 0:  sum 0   sum 1   sum 2           join           -> 0
//   rank 1:  sum 0   join: zeros for sum 1, sum 2           -> 0
//
// All-reduces with sum and average go on. Any other collective ends on all ranks with a UsageError,
// whose fault has the details kJoinedDetails; the next one works.
//
// Thread safety: none; the engine's threads may run meanwhile.
class JoinedRank final {
 public:
  // Fault::details of the collectives that a rank does not take part in because it has joined.
  static constexpr const char* kJoinedDetails = R"({"kind": "joined"})";

  // groups: groups of the same ranks, in which this rank has no pending operation. control: a group
  // of these ranks that has no other operations. timeout: time that the ranks may take to join, and
  // that each all-reduce may take.
  JoinedRank(std::shared_ptr<Engine> engine, std::vector<uint32_t> groups, uint32_t control,
             std::chrono::milliseconds timeout);
  ~JoinedRank();
  JoinedRank(const JoinedRank&) = delete;
  JoinedRank& operator=(const JoinedRank&) = delete;

  // Answer the all-reduces of the others until all ranks have joined, or for this time. Returns
  // whether all have. Throws the error of an engine that has failed.
  bool advance(std::chrono::milliseconds limit);

  // Return the rank, by its number in the groups, that has joined last: the one that had submitted
  // the most collectives, and of several the highest. Requires: advance() has returned true.
  int last() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace smdist
