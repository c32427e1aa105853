// SPDX-License-Identifier: Apache-2.0
// Frames that ranks exchange after the authentication handshake.
//
//   byte  0  u32 magic "SMD1"        byte 16  u64 sequence (operation number)
//         4  u8  version                  24  u32 tag
//         5  u8  type                     28  u32 channel
//         6  u8  role                     32  u64 offset
//         7  u8  (0)                      40  u64 length of the payload
//         8  u32 group
//        12  u32 source (engine rank)
//
// All numbers are little-endian. The wire is hostile: decode() accepts nothing
// that encode() does not write, and the receiver checks every length against
// what it expects before it uses it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smdist/transport.h"

namespace smdist {

constexpr uint8_t kWireVersion = 5;

// Part that the sender of a frame takes in the operation that the frame belongs to.
enum class Role : uint8_t {
  kCollective = 0,  // a member of a collective
  kSend = 1,
  kReceive = 2,
};

enum class FrameType : uint8_t {
  kRtr = 1,     // ready to receive: the sender has posted (group, sequence); payload: a descriptor
  kData = 2,    // bytes [offset, offset + length) of message `tag` of an operation
  kAbort = 3,   // the job has failed; payload: a fault
  kLeave = 4,   // orderly end: the sender sends nothing more
  kCredit = 5,  // credit for message `tag` of an operation: it may be sent now
  kDataBlock =
      6,  // as kData, with the bytes in a block of the sender's arena; payload: a block reference
  kReleaseBlock = 7,  // block `tag` of the receiver's arena has been read
  // RTR with eager message `tag`; payload: a descriptor, then the bytes of the message.
  kRtrEager = 8,
  kRtrEagerBlock = 9,  // the same; payload: a descriptor, then a block reference
  kRtrTicket = 10,     // RTR for a sum in shared memory; payload: a descriptor, then a ticket
};

struct Frame {
  FrameType type = FrameType::kLeave;
  uint32_t group = 0;
  uint32_t source = 0;
  Role role = Role::kCollective;
  uint32_t channel = 0;   // tag of a send or receive
  uint64_t sequence = 0;  // counts collectives in the group, or messages in the channel
  uint32_t tag = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

constexpr uint64_t kDescriptorBytes = 40;
constexpr uint64_t kBlockRefBytes = 8;
constexpr uint64_t kSharedSumTicketBytes = 12;
constexpr uint64_t kMaxEagerBytes = 1 << 20;  // length of an eager message
constexpr uint64_t kMaxFaultBytes = 8192;

HeaderBytes encode(const Frame& frame);

// Throws PeerError with a predicate as text; the caller puts the sender's name before it.
Frame decode(const HeaderBytes& header);

}  // namespace smdist
