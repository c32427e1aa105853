// SPDX-License-Identifier: Apache-2.0
// A collective as data: what one rank has to do, without doing it.
//
// Vocabulary. A *message* goes from one rank to another and is known by its tag,
// which is unique per sender, receiver and operation. A *region* is a part of a
// numbered buffer. Steps are done in any order that respects `after`; two plans
// of two ranks fit if every Send of one has a Receive of the same tag and length
// in the other.
//
// A Receive that depends on nothing is open: its region may be written from the
// moment the rank posted the operation. One that comes after other steps, such as
// the sum that reads its region before, is opened by a grant to its sender, whose
// Send says so.
//
// Two rules let neighbours read each other's memory instead of copying it. What is
// received into scratch is read by one Reduce and by nothing else. And the bytes that
// Sends read do not change between the first Send of a region and the end of the
// operation.
//
// No message is empty, but for the barrier's; an empty
// message arrives with the news that its sender has posted the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smdist {

enum class Room : uint8_t { kInput, kOutput, kScratch };

struct Region {
  Room room = Room::kScratch;
  uint32_t index = 0;  // which input or output; 0 for scratch
  size_t offset = 0;
  size_t bytes = 0;
};

enum class StepKind : uint8_t {
  kSend,     // sources[0] to peer
  kReceive,  // from peer into target
  kCopy,     // sources[0] to target
  kReduce,   // all sources, in order, to target
};

// What a sum adds: the contributions to a total; those of one host to a partial
// sum; or partial sums to a total.
enum class Stage : uint8_t { kWhole, kPartial, kFinal };

struct Step {
  StepKind kind = StepKind::kCopy;
  int peer = -1;     // rank in the group
  uint32_t tag = 0;  // of the message
  std::vector<Region> sources;
  Region target;
  std::vector<uint32_t> after;  // indices of earlier steps
  Stage stage = Stage::kWhole;  // of a Reduce
  bool awaits_grant = false;    // a Send whose Receive comes after other steps
};

struct Plan {
  size_t scratch_bytes = 0;
  std::vector<Step> steps;
};

}  // namespace smdist
