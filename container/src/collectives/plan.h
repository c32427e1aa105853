// SPDX-License-Identifier: Apache-2.0
// Plan of a collective: the steps of one rank, as data.
//
// Vocabulary. A *message* goes from one rank to another and is identified by its tag, which is
// unique per sender, receiver and operation. A *region* is a part of a numbered buffer. Steps may
// run in any order that respects `after`. The plans of two ranks match if every Send of one has a
// Receive of the same tag and length in the other.
//
// A Receive without dependencies is open: its region may be written as soon as the rank has
// posted the operation. A Receive that depends on other steps, such as an earlier sum that reads
// its region, opens when they are complete; the receiver then sends a credit, and the matching
// Send waits for it.
//
// Two rules allow ranks of one host to read each other's memory without a copy. A region received
// into scratch is read by exactly one Reduce and by no other step. The bytes that Sends read do
// not change between the first Send of a region and the end of the operation.
//
// Only signals, such as a barrier's, are empty messages. An empty message counts as arrived when
// its sender has posted the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist {

enum class BufferKind : uint8_t { kInput, kOutput, kScratch };

struct Region {
  BufferKind buffer = BufferKind::kScratch;
  uint32_t index = 0;  // number of the input or output; 0 for scratch
  size_t offset = 0;
  size_t bytes = 0;
};

enum class StepKind : uint8_t {
  kSend,     // sources[0] to peer
  kReceive,  // from peer into target
  kCopy,     // sources[0] to target
  kReduce,   // all sources, in order, to target
};

// Kind of a Reduce: contributions to a total, contributions of one host to a partial sum, or
// partial sums to a total.
enum class ReduceStage : uint8_t { kWhole, kPartial, kFinal };

struct Step {
  StepKind kind = StepKind::kCopy;
  int peer = -1;     // rank in the group
  uint32_t tag = 0;  // of the message
  std::vector<Region> sources;
  Region target;
  std::vector<uint32_t> after;              // indices of earlier steps
  ReduceStage stage = ReduceStage::kWhole;  // of a Reduce
  bool awaits_credit = false;               // of a Send: its Receive depends on other steps
};

struct Plan {
  size_t scratch_bytes = 0;
  std::vector<Step> steps;
};

}  // namespace smdist
