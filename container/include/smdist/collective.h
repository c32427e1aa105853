// SPDX-License-Identifier: Apache-2.0
// The collectives the engine knows.
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
};
constexpr uint8_t kCollectives = 9;

const char* name_of(Collective kind);
bool is_reducing(Collective kind);  // has a ReduceOp and a scale
bool is_rooted(Collective kind);    // has a root

}  // namespace smdist
