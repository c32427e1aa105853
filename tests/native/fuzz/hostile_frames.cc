// SPDX-License-Identifier: Apache-2.0
#include "hostile_frames.h"

#include <algorithm>
#include <string>

#include "messaging/block_ref.h"
#include "messaging/descriptor.h"
#include "messaging/fault.h"
#include "messaging/late_report.h"
#include "messaging/shared_sum_ticket.h"

namespace smdist::fuzzing {
namespace {

constexpr uint64_t kMostPayload = 96 << 10;

Frame frame_for(const Posted& posted, int peer) {
  Frame frame = frame_of(posted.id);
  frame.source = static_cast<uint32_t>(peer);
  if (frame.role == Role::kSend) {
    frame.role = Role::kReceive;
  } else if (frame.role == Role::kReceive) {
    frame.role = Role::kSend;
  }
  return frame;
}

// Sets the next bytes of a message: its rest, or a part. Rarely, the last ones again, or others.
void next_part(FuzzInput& input, Posted& posted, int member, uint64_t whole, Frame& frame) {
  Posted::Part& last = posted.sent[{member, frame.tag}];
  const size_t choice = input.below(16);
  frame.offset = last.offset + last.bytes;
  if (choice >= 12) frame.offset = last.offset;
  if (choice == 14) frame.offset = last.offset + 2 * last.bytes;  // as if the last one came twice
  if (choice == 15) frame.offset = input.number<uint16_t>();
  const uint64_t rest = whole - std::min(whole, frame.offset);
  frame.length = rest;
  if (choice % 4 == 2) frame.length = std::min<uint64_t>(rest, input.byte());
  if (choice == 11) frame.length = input.number<uint16_t>();
  last = {frame.offset, frame.length};
}

std::string descriptor_payload(FuzzInput& input, const Posted& posted, int member) {
  DescriptorBytes bytes = encode(posted.descriptor_of_member(member));
  const bool is_changed = input.below(16) == 15;
  if (is_changed) bytes[input.below(bytes.size())] = input.byte();
  return {bytes.begin(), bytes.end()};
}

BlockRef block_of(FuzzInput& input, uint64_t bytes) {
  const bool is_hostile = input.below(16) == 15;
  if (is_hostile) return {input.number<uint32_t>(), input.number<uint32_t>()};
  return {static_cast<uint32_t>(input.below(5)), static_cast<uint32_t>(bytes)};
}

SharedSumTicket ticket_of(FuzzInput& input) {
  const bool is_hostile = input.below(16) == 15;
  if (is_hostile) {
    return {input.number<uint32_t>(), input.number<uint64_t>(), input.number<uint64_t>()};
  }
  return {static_cast<uint32_t>(input.below(4)), input.flag() ? 0 : input.byte() % uint64_t{8}};
}

FrameBytes bytes_of(Frame frame, const std::string& payload, uint64_t pattern_bytes = 0) {
  frame.length = payload.size() + pattern_bytes;
  const HeaderBytes header = encode(frame);
  FrameBytes bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  bytes.resize(bytes.size() + std::min(pattern_bytes, kMostPayload), 1);
  return bytes;
}

FrameBytes rtr_frame(FuzzInput& input, FrameType type, Frame frame, const Posted& posted,
                     int member) {
  frame.type = type;
  const std::string descriptor = descriptor_payload(input, posted, member);
  if (type == FrameType::kRtr) return bytes_of(frame, descriptor);
  if (type == FrameType::kRtrTicket) return bytes_of(frame, descriptor + encode(ticket_of(input)));
  const PlannedMessage* message = posted.pick(input, member, StepKind::kReceive);
  const uint64_t whole = message != nullptr ? message->bytes : 0;
  frame.tag = message != nullptr ? message->tag : static_cast<uint32_t>(input.below(4));
  if (type == FrameType::kRtrEagerBlock)
    return bytes_of(frame, descriptor + encode(block_of(input, whole)));
  const uint64_t eager = input.below(8) == 7 ? input.number<uint16_t>() : whole;
  return bytes_of(frame, descriptor, std::max<uint64_t>(eager, 1));
}

FrameBytes data_frame(FuzzInput& input, FrameType type, Frame frame, Posted& posted, int member) {
  frame.type = type;
  const PlannedMessage* message = posted.pick(input, member, StepKind::kReceive);
  const std::vector<Span>& outputs = posted.operation.outputs;
  const uint64_t of_receive = outputs.empty() ? 0 : outputs[0].bytes;
  frame.tag = message != nullptr ? message->tag : static_cast<uint32_t>(input.below(4));
  next_part(input, posted, member, message != nullptr ? message->bytes : of_receive, frame);
  if (type == FrameType::kDataBlock) return bytes_of(frame, encode(block_of(input, frame.length)));
  return bytes_of(frame, {}, frame.length);
}

FrameBytes fault_frame(FuzzInput& input, int peer) {
  Frame frame;
  frame.type = FrameType::kAbort;
  frame.source = static_cast<uint32_t>(peer);
  const std::vector<uint8_t> bytes = input.bytes(16);
  const Fault fault{FaultKind::kAborted, peer, {bytes.begin(), bytes.end()}};
  return bytes_of(frame, input.flag() ? std::string(bytes.begin(), bytes.end()) : encode(fault));
}

// Changes what names the operation, so that it may be one to come, or of another group.
void rename(FuzzInput& input, Frame& frame) {
  switch (input.below(4)) {
    case 0:
      frame.group = static_cast<uint32_t>(input.below(4));
      break;
    case 1:
      frame.sequence += input.below(4);
      break;
    case 2:
      frame.role = static_cast<Role>(input.below(3));
      break;
    default:
      frame.channel = frame.role == Role::kCollective ? 0 : static_cast<uint32_t>(input.below(3));
  }
}

// The report that ranks disagree about an operation.
FrameBytes mismatch_frame(FuzzInput& input, Frame frame) {
  frame.type = FrameType::kMismatch;
  if (input.below(4) == 3) rename(input, frame);
  const Fault fault{input.below(8) == 7 ? FaultKind::kAborted : FaultKind::kUsage, 0, "differs"};
  return bytes_of(frame, encode(fault, kMaxMismatchBytes));
}

// Report on ranks for which the peer waits in an operation, or any bytes in its place.
FrameBytes late_frame(FuzzInput& input, Frame frame) {
  frame.type = FrameType::kLate;
  rename(input, frame);
  const std::vector<uint8_t> bytes = input.bytes(kLatePrefixBytes + 2 * kLateRankBytes);
  if (input.flag()) return bytes_of(frame, std::string(bytes.begin(), bytes.end()));
  LateReport report;
  for (size_t count = input.below(4); count > 0; --count) {
    report.ranks[static_cast<int>(input.below(5))] = {input.flag(), LastOperation{}};
  }
  return bytes_of(frame, encode(report));
}

// Frame without a payload, or a header with any bytes.
FrameBytes other_frame(FuzzInput& input, int peer) {
  Frame frame;
  frame.source = static_cast<uint32_t>(peer);
  switch (input.below(4)) {
    case 0:
      frame.type = FrameType::kLeave;
      return bytes_of(frame, {});
    case 1:
    case 2:
      frame.type = FrameType::kReleaseBlock;
      frame.tag = static_cast<uint32_t>(input.below(9));
      return bytes_of(frame, {});
    default:
      FrameBytes bytes = bytes_of(frame, {});
      for (size_t changes = input.below(8); changes > 0; --changes) {
        bytes[input.below(bytes.size())] = input.byte();
      }
      return bytes;
  }
}

}  // namespace

FrameBytes hostile_frame(FuzzInput& input, int peer, PostedOperations& operations) {
  constexpr FrameType kOfOperations[] = {
      FrameType::kRtr,       FrameType::kRtr,       FrameType::kRtrEager, FrameType::kRtrEagerBlock,
      FrameType::kRtrTicket, FrameType::kRtrTicket, FrameType::kData,     FrameType::kData,
      FrameType::kData,      FrameType::kDataBlock, FrameType::kCredit};
  const size_t choice = input.below(13);
  if (choice == 11 || operations.is_empty()) return other_frame(input, peer);
  Posted& posted = operations.pick(input);
  Frame frame = frame_for(posted, peer);
  if (choice == 12) {
    switch (input.below(4)) {
      case 0:
        return fault_frame(input, peer);
      case 1:
        return mismatch_frame(input, frame);
      case 2:
        return late_frame(input, frame);
      default:
        return other_frame(input, peer);
    }
  }
  if (input.below(16) == 15) rename(input, frame);
  const int member = posted.member_of(peer).value_or(0);
  const FrameType type = kOfOperations[choice];
  switch (type) {
    case FrameType::kData:
    case FrameType::kDataBlock:
      return data_frame(input, type, frame, posted, member);
    case FrameType::kCredit: {
      const PlannedMessage* message = posted.pick(input, member, StepKind::kSend);
      frame.type = type;
      frame.tag = message != nullptr ? message->tag : static_cast<uint32_t>(input.below(4));
      return bytes_of(frame, {});
    }
    default:
      return rtr_frame(input, type, frame, posted, member);
  }
}

std::vector<FrameBytes> honest_frames(FuzzInput& input, int peer, PostedOperations& operations) {
  if (operations.is_empty()) return {};
  Posted& posted = operations.pick(input);
  const std::optional<int> member = posted.member_of(peer);
  if (!member) return {};
  Frame frame = frame_for(posted, peer);
  frame.type = FrameType::kRtr;
  const DescriptorBytes descriptor = encode(posted.descriptor_of_member(*member));
  std::vector<FrameBytes> frames{bytes_of(frame, {descriptor.begin(), descriptor.end()})};
  frame.type = FrameType::kData;
  for (const PlannedMessage& message : posted.messages) {
    if (message.kind != StepKind::kReceive || message.member != *member) continue;
    Posted::Part& last = posted.sent[{*member, message.tag}];
    frame.tag = message.tag;
    frame.offset = last.offset + last.bytes;
    if (frame.offset >= message.bytes) continue;
    last = {frame.offset, message.bytes - frame.offset};
    frames.push_back(bytes_of(frame, {}, last.bytes));
  }
  return frames;
}

}  // namespace smdist::fuzzing
