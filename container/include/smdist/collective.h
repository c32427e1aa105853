// SPDX-License-Identifier: Apache-2.0
// The kinds of operations: collectives, and messages from one rank to another.
#pragma once

#include <cstdint>

namespace smdist {

// The values are part of the wire format: append, never renumber.
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

const char* name_of(Collective kind);
bool is_reducing(Collective kind);  // has a ReduceOp and a scale
bool is_rooted(Collective kind);    // has a root
bool is_point_to_point(Collective kind);

}  // namespace smdist
