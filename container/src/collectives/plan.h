// SPDX-License-Identifier: Apache-2.0
// Plan of a collective: the sends, receives, copies and reductions of one rank, as data.
//
// A *message* goes from one rank to another and is identified by its tag, which is unique for the
// sender, the receiver and the operation. A *region* is a range of bytes of an input, an output or
// the scratch memory. Steps may run in any order in which each runs after the steps of its `after`.
// The plans of two ranks match if every Send of one has a Receive with the same tag and length in
// the other.
//
// The region of a Receive without dependencies may be written as soon as the rank has posted the
// operation. A Receive that depends on other steps, such as an earlier sum that reads its region,
// waits until they are complete. The receiver then sends a credit, for which the matching Send
// waits.
//
// Two rules allow ranks of one host to read each other's memory without a copy. First, scratch
// memory that a Receive writes is read by exactly one Reduce and by no other step. Second, bytes
// do not change between the first Send that reads them and the end of the operation.
//
// Empty messages are signals, such as those of a barrier. An empty message counts as received when
// its sender has posted the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist {

// Buffer that a region belongs to.
enum class BufferKind : uint8_t { kInput, kOutput, kScratch };

// Range of bytes of a buffer.
struct Region {
  BufferKind buffer = BufferKind::kScratch;
  uint32_t index = 0;  // number of the input or output; 0 for scratch
  size_t offset = 0;
  size_t bytes = 0;
};

// Kind of a step of a plan.
enum class StepKind : uint8_t {
  kSend,     // sends sources[0] to peer
  kReceive,  // receives target from peer
  kCopy,     // copies sources[0] to target
  kReduce,   // reduces all sources, in order, to target
};

// Stage of a reduction that a Reduce step computes.
enum class ReduceStage : uint8_t {
  kWhole,    // from the contributions of all ranks to the result
  kPartial,  // from the contributions of one host's ranks to the partial sum of the host
  kFinal,    // from the partial sums of all hosts to the result
};

// One step of a plan.
struct Step {
  StepKind kind = StepKind::kCopy;
  int peer = -1;     // rank in the group, for a Send or Receive
  uint32_t tag = 0;  // tag of the message, for a Send or Receive
  std::vector<Region> sources;
  Region target;
  std::vector<uint32_t> after;              // indices of steps that must be complete before
  ReduceStage stage = ReduceStage::kWhole;  // stage of a Reduce
  bool awaits_credit = false;               // true for a Send that waits for the receiver's credit
};

// Steps of one rank, and the size of the scratch memory that they use.
struct Plan {
  size_t scratch_bytes = 0;
  std::vector<Step> steps;
};

}  // namespace smdist
