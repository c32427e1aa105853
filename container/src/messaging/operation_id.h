// SPDX-License-Identifier: Apache-2.0
// Identity of an operation.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "messaging/frame.h"

namespace smdist {

// Number of an operation and its scope. Collectives are numbered within their group. Sends and
// receives are numbered within their channel: one sender, one receiver, one tag and one group. If
// one call consists of several collectives, they have one number, and are numbered within it.
struct OperationId {
  uint32_t group = 0;
  Role role = Role::kCollective;  // role of this rank
  uint32_t channel = 0;           // tag of a send or receive
  int peer = -1;                  // engine rank of the other side
  uint64_t sequence = 0;
  uint32_t part = 0;  // number of a collective within its call
};

// Order operations so that those of one tag in one group are adjacent, and those of one call.
inline bool operator<(const OperationId& a, const OperationId& b) {
  return std::tie(a.group, a.role, a.channel, a.peer, a.sequence, a.part) <
         std::tie(b.group, b.role, b.channel, b.peer, b.sequence, b.part);
}

inline bool operator==(const OperationId& a, const OperationId& b) { return !(a < b || b < a); }

// Return the id of the first operation of the same call.
inline OperationId call_of(OperationId id) {
  id.part = 0;
  return id;
}

// Group of the operations by which ranks choose settings at the start.
constexpr uint32_t kStartGroup = UINT32_MAX;

// Return a text such as "operation 5 of group 0", "operation 0 of the start" or "message 5 with tag
// 0 of group 0".
inline std::string text_of(const OperationId& id) {
  const std::string number = std::to_string(id.sequence);
  const std::string group =
      id.group == kStartGroup ? " of the start" : " of group " + std::to_string(id.group);
  if (id.role == Role::kCollective) return "operation " + number + group;
  return "message " + number + " with tag " + std::to_string(id.channel) + group;
}

// Return a frame for the operation; the caller sets its type.
inline Frame frame_of(const OperationId& id) {
  Frame frame;
  frame.group = id.group;
  frame.role = id.role;
  frame.channel = id.role == Role::kCollective ? id.part : id.channel;
  frame.sequence = id.sequence;
  return frame;
}

// Return this rank's id of the operation that a peer's frame belongs to.
inline OperationId id_of(const Frame& frame, int peer) {
  switch (frame.role) {
    case Role::kSend:
      return {frame.group, Role::kReceive, frame.channel, peer, frame.sequence};
    case Role::kReceive:
      return {frame.group, Role::kSend, frame.channel, peer, frame.sequence};
    case Role::kCollective:
      break;
  }
  return {frame.group, Role::kCollective, 0, -1, frame.sequence, frame.channel};
}

}  // namespace smdist
