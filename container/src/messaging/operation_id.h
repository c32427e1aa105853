// SPDX-License-Identifier: Apache-2.0
// Which operation is meant.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "messaging/frame.h"

namespace smdist {

// The collectives of a group are numbered. Sends and receives are numbered by
// channel: from one rank to another, with one tag, in one group.
struct OperationId {
  uint32_t group = 0;
  Way way = Way::kCollective;  // ours
  uint32_t channel = 0;        // the tag of a send or receive
  int peer = -1;               // engine rank of its other side
  uint64_t sequence = 0;
};

// Those of one tag of one group lie side by side.
inline bool operator<(const OperationId& a, const OperationId& b) {
  return std::tie(a.group, a.way, a.channel, a.peer, a.sequence) <
         std::tie(b.group, b.way, b.channel, b.peer, b.sequence);
}

inline bool operator==(const OperationId& a, const OperationId& b) { return !(a < b || b < a); }

// As "operation 5 of group 0" or "message 5 with tag 0 of group 0".
inline std::string text_of(const OperationId& id) {
  const std::string number = std::to_string(id.sequence);
  const std::string group = " of group " + std::to_string(id.group);
  if (id.way == Way::kCollective) return "operation " + number + group;
  return "message " + number + " with tag " + std::to_string(id.channel) + group;
}

// A frame about the operation, but for its type.
inline Frame frame_of(const OperationId& id) {
  Frame frame;
  frame.group = id.group;
  frame.way = id.way;
  frame.channel = id.channel;
  frame.sequence = id.sequence;
  return frame;
}

// Our side of the operation that a peer's frame is about.
inline OperationId id_of(const Frame& frame, int peer) {
  switch (frame.way) {
    case Way::kSend:
      return {frame.group, Way::kReceive, frame.channel, peer, frame.sequence};
    case Way::kReceive:
      return {frame.group, Way::kSend, frame.channel, peer, frame.sequence};
    case Way::kCollective:
      break;
  }
  return {frame.group, Way::kCollective, 0, -1, frame.sequence};
}

}  // namespace smdist
