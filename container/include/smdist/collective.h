// SPDX-License-Identifier: Apache-2.0
// The kinds of operations: collectives, and messages from one rank to another.
#pragma once

#include <cstdint>

namespace smdist {

// Kind of an operation. The values are part of the wire format: append, never renumber.
enum class Collective : uint8_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kReduce = 4,
  kGather = 5,
  kScatter = 6,
  kAllToAll = 7,
  kBarrier = 8,
  kSend = 9,
  kReceive = 10,
};
constexpr uint8_t kCollectives = 11;

// Return the name in Python and in messages, such as "all_reduce".
const char* name_of(Collective kind);
// Return whether the operation combines values, and so has a ReduceOp and a scale.
bool is_reducing(Collective kind);
// Return whether the operation has a root rank.
bool is_rooted(Collective kind);
// Return whether the operation is a send or a receive.
bool is_point_to_point(Collective kind);

}  // namespace smdist
