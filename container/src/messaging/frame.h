// SPDX-License-Identifier: Apache-2.0
// The frames that ranks exchange, once they have greeted each other.
//
//   byte  0  u32 magic "SMD1"        byte 16  u64 sequence (operation number)
//         4  u8  version                  24  u32 tag
//         5  u8  type                     28  u32 channel
//         6  u8  way                      32  u64 offset
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

constexpr uint8_t kWireVersion = 4;

// What the sender of a frame does in the operation that the frame is about.
enum class Way : uint8_t {
  kCollective = 0,  // the same as everybody
  kSend = 1,
  kReceive = 2,
};

enum class FrameType : uint8_t {
  kReady = 1,    // the sender has posted (group, sequence); payload: a descriptor
  kData = 2,     // bytes [offset, offset + length) of message `tag` of an operation
  kAbort = 3,    // the job has failed; payload: a fault
  kGoodbye = 4,  // nothing more will come; the sender leaves in order
  kGrant = 5,    // message `tag` of an operation may be sent now
  kShared = 6,   // as kData, but the bytes lie in a block of the sender's arena; payload: a place
  kRelease = 7,  // block `tag` of the receiver's arena has been read
  // As kReady, with all of message `tag`: the payload goes on with its bytes ...
  kReadyData = 8,
  kReadyShared = 9,    // ... or with the place where they lie
  kReadyMeeting = 10,  // as kReady; payload: a descriptor, and where the sender takes part
};

struct Frame {
  FrameType type = FrameType::kGoodbye;
  uint32_t group = 0;
  uint32_t source = 0;
  Way way = Way::kCollective;
  uint32_t channel = 0;   // the tag of a send or receive
  uint64_t sequence = 0;  // of collectives in the group; of messages in the channel
  uint32_t tag = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

constexpr uint64_t kDescriptorBytes = 40;
constexpr uint64_t kPlaceBytes = 8;
constexpr uint64_t kMeetingBytes = 12;
constexpr uint64_t kMaxRiderBytes = 1 << 20;  // of a message that comes with a READY frame
constexpr uint64_t kMaxFaultBytes = 4096;

HeaderBytes encode(const Frame& frame);

// Throws PeerError; its text completes a sentence that begins with the sender.
Frame decode(const HeaderBytes& header);

}  // namespace smdist
