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
// All numbers are little-endian. Received bytes are not trusted: decode() accepts only what
// encode() can write, and the receiver checks every length before use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smdist/transport.h"

namespace smdist {

constexpr uint8_t kWireVersion = 7;

// Role of the sender of a frame in the operation that the frame belongs to.
enum class Role : uint8_t {
  kCollective = 0,  // a member of a collective
  kSend = 1,
  kReceive = 2,
};

// Type of a frame.
enum class FrameType : uint8_t {
  kRtr = 1,     // ready to receive: the sender has posted the operation; payload: a descriptor
  kData = 2,    // bytes [offset, offset + length) of message `tag` of an operation
  kAbort = 3,   // the job has failed; payload: a fault
  kLeave = 4,   // the sender has called shutdown() and sends no more frames
  kCredit = 5,  // credit: the receiver of the frame may now send message `tag` of an operation
  // As kData, but the bytes are in a block of the sender's arena; payload: a block reference.
  kDataBlock = 6,
  kReleaseBlock = 7,  // the sender has read block `tag` of the receiver's arena
  // As kRtr, with eager message `tag`; payload: a descriptor, then the bytes of the message.
  kRtrEager = 8,
  // As kRtrEager; payload: a descriptor, then a reference to a block with the bytes.
  kRtrEagerBlock = 9,
  // As kRtr, for a sum in shared memory; payload: a descriptor, then a SharedSumTicket.
  kRtrTicket = 10,
  // The ranks disagree about the call that the operation belongs to, which has ended; payload: a
  // fault.
  kMismatch = 11,
};

// Header of a frame.
struct Frame {
  FrameType type = FrameType::kLeave;
  uint32_t group = 0;
  uint32_t source = 0;
  Role role = Role::kCollective;
  uint32_t channel = 0;   // tag of a send or receive; number of a collective within its call
  uint64_t sequence = 0;  // number of the collective in the group, or of the message in the channel
  uint32_t tag = 0;       // number of a message within the operation
  uint64_t offset = 0;
  uint64_t length = 0;
};

constexpr uint64_t kDescriptorBytes = 48;
constexpr uint64_t kBlockRefBytes = 8;
constexpr uint64_t kSharedSumTicketBytes = 12;
constexpr uint64_t kMaxEagerBytes = 1 << 20;  // maximum length of an eager message
constexpr uint64_t kMaxFaultBytes = 8192;
constexpr uint64_t kMaxMismatchBytes = 2048;  // maximum length of the fault in a kMismatch frame

// Return the header in the wire format.
HeaderBytes encode(const Frame& frame);

// Decode a header. Throws PeerError; its text is the rest of a sentence that begins with the
// sender's name.
Frame decode(const HeaderBytes& header);

}  // namespace smdist
