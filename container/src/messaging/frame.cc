// SPDX-License-Identifier: Apache-2.0
#include "messaging/frame.h"

#include <string>

#include "base/little_endian.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr uint32_t kMagic = 0x31444d53;  // "SMD1"

void require(bool holds, const std::string& fault) {
  if (!holds) throw PeerError("sent a malformed frame: " + fault);
}

FrameType type_of(uint8_t byte) {
  const bool is_known = byte >= static_cast<uint8_t>(FrameType::kRtr) &&
                        byte <= static_cast<uint8_t>(FrameType::kLate);
  require(is_known, "its type " + std::to_string(byte) + " does not exist");
  return static_cast<FrameType>(byte);
}

void check_length(const Frame& frame) {
  const std::string length =
      "a payload of " + std::to_string(frame.length) + " bytes does not fit its type";
  switch (frame.type) {
    case FrameType::kRtr:
      require(frame.length == kDescriptorBytes, length);
      break;
    case FrameType::kData:
      require(frame.length > 0, length);
      require(frame.offset <= UINT64_MAX - frame.length,
              "its offset plus its length exceeds 64 bits");
      break;
    case FrameType::kAbort:
      require(frame.length >= 9 && frame.length <= kMaxFaultBytes, length);
      break;
    case FrameType::kMismatch:
      require(frame.length >= 9 && frame.length <= kMaxMismatchBytes, length);
      break;
    case FrameType::kLate:
      require(frame.length >= kLatePrefixBytes && frame.length <= kMaxLateBytes, length);
      break;
    case FrameType::kRtrEager:
      require(frame.length > kDescriptorBytes && frame.length <= kDescriptorBytes + kMaxEagerBytes,
              length);
      break;
    case FrameType::kRtrEagerBlock:
      require(frame.length == kDescriptorBytes + kBlockRefBytes, length);
      break;
    case FrameType::kRtrTicket:
      require(frame.length == kDescriptorBytes + kSharedSumTicketBytes, length);
      break;
    case FrameType::kDataBlock:
      require(frame.length == kBlockRefBytes, length);
      break;
    case FrameType::kLeave:
    case FrameType::kCredit:
    case FrameType::kReleaseBlock:
      require(frame.length == 0, length);
      break;
  }
  const bool is_data = frame.type == FrameType::kData || frame.type == FrameType::kDataBlock;
  const bool has_tag = frame.type != FrameType::kRtr && frame.type != FrameType::kRtrTicket &&
                       frame.type != FrameType::kAbort && frame.type != FrameType::kLeave &&
                       frame.type != FrameType::kMismatch && frame.type != FrameType::kLate;
  require(has_tag || frame.tag == 0,
          "frames of its type have no tag, but it has tag " + std::to_string(frame.tag));
  require(is_data || frame.offset == 0,
          "frames of its type have no offset, but it has offset " + std::to_string(frame.offset));
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
  require(get<uint32_t>(&header[0]) == kMagic, "its magic number is wrong");
  require(header[4] == kWireVersion, "its version is " + std::to_string(header[4]) +
                                         " instead of " + std::to_string(kWireVersion));
  require(header[6] <= static_cast<uint8_t>(Role::kReceive),
          "its role " + std::to_string(header[6]) + " does not exist");
  require(header[7] == 0, "its reserved byte is not zero");
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
  check_length(frame);
  return frame;
}

}  // namespace smdist
