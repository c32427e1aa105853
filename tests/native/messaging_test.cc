// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <random>

#include "check.h"
#include "messaging/descriptor.h"
#include "messaging/fault.h"
#include "messaging/frame.h"
#include "messaging/send_queue.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

std::optional<Frame> try_decode(const HeaderBytes& header) {
  try {
    return decode(header);
  } catch (const PeerError&) {
    return std::nullopt;
  }
}

Frame data_frame() {
  Frame frame;
  frame.type = FrameType::kData;
  frame.group = 7;
  frame.role = Role::kReceive;
  frame.channel = 9;
  frame.source = 3;
  frame.sequence = uint64_t{1} << 40;
  frame.tag = 12;
  frame.offset = 4096;
  frame.length = 100;
  return frame;
}

void frames_survive_the_wire() {
  const Frame sent = data_frame();
  const Frame read = decode(encode(sent));
  CHECK(read.type == sent.type);
  CHECK_EQ(sent.group, read.group);
  CHECK(sent.role == read.role);
  CHECK_EQ(sent.channel, read.channel);
  CHECK_EQ(sent.source, read.source);
  CHECK_EQ(sent.sequence, read.sequence);
  CHECK_EQ(sent.tag, read.tag);
  CHECK_EQ(sent.offset, read.offset);
  CHECK_EQ(sent.length, read.length);
}

void random_bytes_are_no_frames() {
  std::minstd_rand random(3);
  for (int i = 0; i < 200'000; ++i) {
    HeaderBytes header;
    for (uint8_t& byte : header) byte = static_cast<uint8_t>(random() >> 7);
    CHECK(!try_decode(header));
  }
}

// Every accepted header is exactly what encode() writes.
void damaged_frames_are_refused_or_whole() {
  std::minstd_rand random(4);
  for (int i = 0; i < 200'000; ++i) {
    HeaderBytes header = encode(data_frame());
    for (int n = 0; n < 1 + i % 4; ++n) header[random() % 48] = static_cast<uint8_t>(random() >> 7);
    const std::optional<Frame> frame = try_decode(header);
    if (!frame) continue;
    CHECK(encode(*frame) == header);
    CHECK(frame->offset + frame->length >= frame->length);
  }
}

void lengths_are_bounded_by_type() {
  Frame frame;
  for (const uint64_t length : {uint64_t{0}, uint64_t{39}, uint64_t{41}, UINT64_MAX}) {
    frame.type = FrameType::kRtr;
    frame.length = length;
    CHECK(!try_decode(encode(frame)));
  }
  frame.type = FrameType::kAbort;
  frame.length = kMaxFaultBytes + 1;
  CHECK(!try_decode(encode(frame)));
  frame = data_frame();
  frame.offset = UINT64_MAX - 50;
  CHECK(!try_decode(encode(frame)));
}

void descriptors_detect_different_calls() {
  Descriptor ours;
  ours.kind = Collective::kAllReduce;
  ours.dtype = Dtype::kFloat32;
  ours.bytes = ours.call_bytes = 40;
  CHECK(agree(ours, decode_descriptor(encode(ours))));
  CHECK_CONTAINS("all_reduce(sum, float32, 10)", text_of(ours));
  Descriptor theirs = ours;
  theirs.op = ReduceOp::kMax;
  CHECK(!agree(ours, theirs));
  theirs = ours;
  theirs.scale = 0.5;
  CHECK(!agree(ours, theirs));
  theirs = ours;
  theirs.bytes = 44;
  CHECK(!agree(ours, theirs));
  theirs = ours;
  theirs.call_bytes = 80;
  CHECK(!agree(ours, theirs));
  CHECK_CONTAINS("all_reduce(sum, float32, 10 of 20)", text_of(theirs));
  theirs = ours;
  theirs.kind = Collective::kBroadcast;
  CHECK(!agree(ours, theirs));
  CHECK_CONTAINS("broadcast(float32, 10, root 0)", text_of(theirs));
}

void layouts_must_be_equal() {
  Descriptor ours;
  ours.kind = Collective::kAllReduce;
  ours.to_bytes = ours.from_bytes = 7;
  Descriptor theirs = ours;
  CHECK(agree(ours, theirs));
  CHECK(!have_other_layouts(ours, theirs));
  theirs.to_bytes = theirs.from_bytes = 8;
  CHECK(!agree(ours, theirs));
  CHECK(have_other_layouts(ours, theirs));
}

void splits_may_differ_if_they_fit() {
  Descriptor ours;
  ours.kind = Collective::kAllToAll;
  ours.to_bytes = 3;
  ours.from_bytes = 9;
  Descriptor theirs = ours;
  CHECK(!agree(ours, theirs));
  std::swap(theirs.to_bytes, theirs.from_bytes);
  CHECK(agree(ours, theirs));
  CHECK_CONTAINS("9 elements to and 3 from the other rank)", text_of(theirs));
  CHECK(!have_other_layouts(ours, theirs));
  theirs.bytes = 0xab;  // hash of the layout
  CHECK(!agree(ours, theirs));
  CHECK(have_other_layouts(ours, theirs));
}

void unknown_descriptors_are_refused() {
  std::minstd_rand random(5);
  for (int i = 0; i < 20'000; ++i) {
    DescriptorBytes bytes;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 7);
    try {
      const Descriptor descriptor = decode_descriptor(bytes);
      CHECK(static_cast<uint8_t>(descriptor.kind) < kCollectives);
      CHECK(!text_of(descriptor).empty());
    } catch (const PeerError&) {
    }
  }
}

void faults_keep_their_class() {
  const Fault sent{FaultKind::kTimeout, 3, "it was late", "all_reduce", "{\"step\": 2}"};
  const Fault fault = decode_fault(encode(sent));
  CHECK_EQ(3, fault.culprit);
  CHECK(fault.operation == "all_reduce");
  CHECK(fault.details == "{\"step\": 2}");
  try {
    std::rethrow_exception(error_of(fault));
  } catch (const TimeoutError& error) {
    CHECK_CONTAINS("it was late", error.what());
    CHECK_EQ(3, error.fault()->culprit);
  }
  CHECK(encode({FaultKind::kPeer, 0, std::string(10'000, 'x')}).size() <= kMaxFaultBytes);
}

// A fault that was cut short is refused at every length.
void cut_faults_are_refused() {
  const std::string whole = encode({FaultKind::kLost, 1, "", "barrier", "details"});
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    bool is_refused = false;
    try {
      decode_fault(whole.substr(0, bytes));
    } catch (const PeerError&) {
      is_refused = true;
    }
    CHECK(is_refused);
  }
}

// A short message is sent after one fragment of the long one.
void short_messages_overtake_long_ones() {
  SendQueue send_queue;
  OutgoingMessage big;
  big.bytes = 1000;
  OutgoingMessage small;
  small.id.sequence = 1;
  small.bytes = 10;
  send_queue.push(big);
  send_queue.push(small);
  CHECK(!send_queue.next(100)->is_last);
  const Fragment fragment = *send_queue.next(100);
  CHECK_EQ(1u, fragment.message.id.sequence);
  CHECK(fragment.is_last);
  size_t total = 100;
  while (const auto next = send_queue.next(100)) {
    CHECK_EQ(total, next->offset);
    total += next->bytes;
    CHECK_EQ(total == 1000, next->is_last);
  }
  CHECK_EQ(1000u, total);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(frames_survive_the_wire);
  RUN(random_bytes_are_no_frames);
  RUN(damaged_frames_are_refused_or_whole);
  RUN(lengths_are_bounded_by_type);
  RUN(descriptors_detect_different_calls);
  RUN(layouts_must_be_equal);
  RUN(splits_may_differ_if_they_fit);
  RUN(unknown_descriptors_are_refused);
  RUN(faults_keep_their_class);
  RUN(cut_faults_are_refused);
  RUN(short_messages_overtake_long_ones);
}
