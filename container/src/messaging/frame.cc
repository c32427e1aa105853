// SPDX-License-Identifier: Apache-2.0
#include "messaging/frame.h"

#include <string>

#include "base/little_endian.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr uint32_t kMagic = 0x31444d53;  // "SMD1"

// Refuses a frame. Texts are put together only here: most frames are in order, and decode() is
// called for each of them.
[[noreturn]] void refuse(const std::string& fault) {
  throw PeerError("sent a malformed frame: " + fault);
}

FrameType type_of(uint8_t byte) {
  const bool is_known = byte >= static_cast<uint8_t>(FrameType::kRtr) &&
                        byte <= static_cast<uint8_t>(FrameType::kLate);
  if (!is_known) refuse("its type " + std::to_string(byte) + " does not exist");
  return static_cast<FrameType>(byte);
}

// Returns whether the payload has a length that frames of this type may have.
bool has_fitting_length(const Frame& frame) {
  const uint64_t length = frame.length;
  switch (frame.type) {
    case FrameType::kRtr:
      return length == kDescriptorBytes;
    case FrameType::kData:
      return length > 0;
    case FrameType::kAbort:
      return length >= 9 && length <= kMaxFaultBytes;
    case FrameType::kMismatch:
      return length >= 9 && length <= kMaxMismatchBytes;
    case FrameType::kLate:
      return length >= kLatePrefixBytes && length <= kMaxLateBytes;
    case FrameType::kRtrEager:
      return length > kDescriptorBytes && length <= kDescriptorBytes + kMaxEagerBytes;
    case FrameType::kRtrEagerBlock:
      return length == kDescriptorBytes + kBlockRefBytes;
    case FrameType::kRtrTicket:
      return length == kDescriptorBytes + kSharedSumTicketBytes;
    case FrameType::kDataBlock:
      return length == kBlockRefBytes;
    case FrameType::kLeave:
    case FrameType::kCredit:
    case FrameType::kReleaseBlock:
      return length == 0;
  }
  return false;
}

bool may_have_tag(FrameType type) {
  return type != FrameType::kRtr && type != FrameType::kRtrTicket && type != FrameType::kAbort &&
         type != FrameType::kLeave && type != FrameType::kMismatch && type != FrameType::kLate;
}

void check_fields(const Frame& frame) {
  const bool is_data = frame.type == FrameType::kData || frame.type == FrameType::kDataBlock;
  if (!has_fitting_length(frame)) {
    refuse("a payload of " + std::to_string(frame.length) + " bytes does not fit its type");
  }
  if (frame.type == FrameType::kData && frame.offset > UINT64_MAX - frame.length) {
    refuse("its offset plus its length exceeds 64 bits");
  }
  if (frame.tag != 0 && !may_have_tag(frame.type)) {
    refuse("frames of its type have no tag, but it has tag " + std::to_string(frame.tag));
  }
  if (frame.offset != 0 && !is_data) {
    refuse("frames of its type have no offset, but it has offset " + std::to_string(frame.offset));
  }
}

}  // namespace

HeaderBytes encode(const Frame& frame) {
  HeaderBytes header{};
  put<uint32_t>(&header[0], kMagic);
  header[4] = kWireVersion;
  header[5] = static_cast<uint8_t>(frame.type);
  header[6] = static_cast<uint8_t>(frame.role);
  put<uint32_t>(&header[8], frame.group);
  put<uint32_t>(&header[12], frame.source);
  put<uint64_t>(&header[16], frame.sequence);
  put<uint32_t>(&header[24], frame.tag);
  put<uint32_t>(&header[28], frame.channel);
  put<uint64_t>(&header[32], frame.offset);
  put<uint64_t>(&header[40], frame.length);
  return header;
}

Frame decode(const HeaderBytes& header) {
  if (get<uint32_t>(&header[0]) != kMagic) refuse("its magic number is wrong");
  if (header[4] != kWireVersion) {
    refuse("its version is " + std::to_string(header[4]) + " instead of " +
           std::to_string(kWireVersion));
  }
  if (header[6] > static_cast<uint8_t>(Role::kReceive)) {
    refuse("its role " + std::to_string(header[6]) + " does not exist");
  }
  if (header[7] != 0) refuse("its reserved byte is not zero");
  Frame frame;
  frame.type = type_of(header[5]);
  frame.role = static_cast<Role>(header[6]);
  frame.group = get<uint32_t>(&header[8]);
  frame.source = get<uint32_t>(&header[12]);
  frame.sequence = get<uint64_t>(&header[16]);
  frame.tag = get<uint32_t>(&header[24]);
  frame.channel = get<uint32_t>(&header[28]);
  frame.offset = get<uint64_t>(&header[32]);
  frame.length = get<uint64_t>(&header[40]);
  check_fields(frame);
  return frame;
}

}  // namespace smdist
