// SPDX-License-Identifier: Apache-2.0
// Fuzz targets of the parsers of frames and of their payloads. Besides memory errors they find
// bytes that decode to something which encodes to other bytes.
#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "base/little_endian.h"
#include "engine/rtr_message.h"
#include "fuzz_target.h"
#include "messaging/block_ref.h"
#include "messaging/descriptor.h"
#include "messaging/fault.h"
#include "messaging/frame.h"
#include "messaging/operation_id.h"
#include "messaging/shared_sum_ticket.h"
#include "smdist/errors.h"

namespace smdist::fuzzing {
namespace {

constexpr int kPeer = 1;

// Returns the bytes of a header. Half of the inputs get the right magic number and version, which
// a random change of bytes would rarely hit.
HeaderBytes header_of(FuzzInput& input) {
  HeaderBytes header = encode(Frame{});
  const bool is_raw = input.flag();
  std::array<uint8_t, kHeaderBytes - 5> rest{};
  input.fill(rest);
  std::copy(rest.begin(), rest.end(), header.begin() + 5);
  if (is_raw) {
    std::array<uint8_t, 5> beginning{};
    input.fill(beginning);
    std::copy(beginning.begin(), beginning.end(), header.begin());
  }
  return header;
}

FUZZ_TARGET(frame) {
  const HeaderBytes header = header_of(input);
  try {
    const Frame frame = decode(header);
    FUZZ_CHECK(encode(frame) == header);
    FUZZ_CHECK(frame.type == FrameType::kData || frame.length <= kDescriptorBytes + kMaxEagerBytes);
    const OperationId ours = id_of(frame, kPeer);
    FUZZ_CHECK(!text_of(ours).empty());
    FUZZ_CHECK(frame_of(ours).sequence == frame.sequence);
  } catch (const PeerError& error) {
    FUZZ_CHECK(std::strlen(error.what()) > 0);
  }
}

FUZZ_TARGET(descriptor) {
  DescriptorBytes bytes{};
  input.fill(bytes);
  try {
    const Descriptor descriptor = decode_descriptor(bytes);
    FUZZ_CHECK(encode(descriptor) == bytes);
    FUZZ_CHECK(!text_of(descriptor).empty());
    Descriptor theirs = descriptor;
    std::swap(theirs.to_bytes, theirs.from_bytes);
    FUZZ_CHECK(agree(descriptor, theirs));
    FUZZ_CHECK(agree(theirs, descriptor));
    DescriptorBytes others{};
    input.fill(others);
    const Descriptor other = decode_descriptor(others);
    FUZZ_CHECK(agree(descriptor, other) == agree(other, descriptor));
  } catch (const PeerError& error) {
    FUZZ_CHECK(std::strlen(error.what()) > 0);
  }
}

FUZZ_TARGET(fault) {
  const std::vector<uint8_t> bytes = input.bytes(kMaxFaultBytes);
  const std::string payload(bytes.begin(), bytes.end());
  try {
    const Fault fault = decode_fault(payload);
    const std::string again = encode(fault);
    FUZZ_CHECK(again.size() <= kMaxFaultBytes);
    FUZZ_CHECK(name_of(fault.kind)[0] != '\0');
    const Fault forwarded = decode_fault(again);
    FUZZ_CHECK(forwarded.kind == fault.kind && forwarded.culprit == fault.culprit);
    FUZZ_CHECK(encode(forwarded) == again);
    try {
      std::rethrow_exception(error_of(fault));
    } catch (const Error& error) {
      FUZZ_CHECK(error.fault() != nullptr && error.fault()->text == fault.text);
    }
  } catch (const PeerError& error) {
    FUZZ_CHECK(std::strlen(error.what()) > 0);
  }
}

FUZZ_TARGET(references) {
  const bool is_ticket = input.flag();
  if (is_ticket) {
    std::array<uint8_t, kSharedSumTicketBytes> bytes{};
    input.fill(bytes);
    const std::string again = encode(decode_shared_sum_ticket(bytes.data()));
    FUZZ_CHECK(again == std::string(bytes.begin(), bytes.end()));
    return;
  }
  const std::vector<uint8_t> bytes = input.bytes(4 * kBlockRefBytes);
  try {
    const std::string again = encode(decode_block_ref(bytes));
    FUZZ_CHECK(again == std::string(bytes.begin(), bytes.end()));
  } catch (const PeerError&) {
    FUZZ_CHECK(bytes.size() != kBlockRefBytes);
  }
}

// Returns the length that decode() accepts for a frame of this type.
size_t rtr_bytes(FrameType type, size_t eager) {
  switch (type) {
    case FrameType::kRtrEager:
      return kDescriptorBytes + 1 + eager;
    case FrameType::kRtrEagerBlock:
      return kDescriptorBytes + kBlockRefBytes;
    case FrameType::kRtrTicket:
      return kDescriptorBytes + kSharedSumTicketBytes;
    default:
      return kDescriptorBytes;
  }
}

FUZZ_TARGET(rtr_message) {
  constexpr FrameType kTypes[] = {FrameType::kRtr, FrameType::kRtrEager, FrameType::kRtrEagerBlock,
                                  FrameType::kRtrTicket};
  const FrameType type = kTypes[input.below(4)];
  const size_t eager = input.byte();
  std::vector<uint8_t> payload(rtr_bytes(type, eager));
  input.fill(payload);
  payload.shrink_to_fit();
  try {
    const RtrMessage message = decode_rtr(type, payload);
    std::string again;
    const DescriptorBytes descriptor = encode(message.descriptor);
    again.assign(descriptor.begin(), descriptor.end());
    again.append(reinterpret_cast<const char*>(message.eager), message.eager_bytes);
    if (message.eager_block) again += encode(*message.eager_block);
    if (message.ticket) again += encode(*message.ticket);
    FUZZ_CHECK(again == std::string(payload.begin(), payload.end()));
    FUZZ_CHECK(message.has_eager() ==
               (type == FrameType::kRtrEager || type == FrameType::kRtrEagerBlock));
  } catch (const PeerError& error) {
    FUZZ_CHECK(std::strlen(error.what()) > 0);
  }
}

}  // namespace
}  // namespace smdist::fuzzing
