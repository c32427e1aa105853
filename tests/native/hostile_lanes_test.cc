// SPDX-License-Identifier: Apache-2.0
// Tests of a member of the job that breaks the rules of lanes: rank 0's job may end, its memory is
// untouched, and the fault names the member.
#include <sys/socket.h>

#include <thread>

#include "check.h"
#include "cluster.h"
#include "messaging/descriptor.h"
#include "stranger.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::hello_of;
using testing::kCredentials;
using testing::Network;
using testing::Result;
using testing::start;
using testing::Stranger;
using testing::sum_of;
using testing::text_of;
using Answer = Stranger::Answer;

constexpr uint64_t kBytes = 4000;  // length of the message that rank 0 receives from rank 1

Cluster cluster_with_lanes(int size, uint32_t lanes,
                           std::chrono::milliseconds silence = std::chrono::seconds(60)) {
  return Cluster(size, Network::kTcp, [&](Options& options) {
    for (int rank = 0; rank < size; ++rank) options.hosts.push_back(rank);
    options.tuning.lanes = lanes;
    options.silence = silence;
  });
}

void say_frame(Stranger& lane, Frame frame, const std::string& payload, uint64_t length) {
  frame.source = 1;
  frame.length = length;
  const HeaderBytes header = encode(frame);
  lane.say(header.data(), header.size());
  lane.say(payload.data(), payload.size());
}

Frame frame_of_send(FrameType type) {
  Frame frame;
  frame.type = type;
  frame.role = Role::kSend;
  return frame;
}

// Rank 1, which connects with four lanes and announces a message of kBytes bytes.
class Member final {
 public:
  explicit Member(Cluster& cluster) {
    for (uint32_t number = 0; number < 4; ++number) {
      lanes.push_back(std::make_unique<Stranger>(cluster[0].endpoint()));
      lanes.back()->enter(hello_of(1, 0, number));
    }
    Descriptor descriptor;
    descriptor.kind = Collective::kSend;
    descriptor.bytes = kBytes;
    const DescriptorBytes bytes = encode(descriptor);
    say_frame(*lanes[0], frame_of_send(FrameType::kRtr), {bytes.begin(), bytes.end()},
              bytes.size());
  }

  // Sends a frame of the message that claims `length` bytes and carries fewer.
  void say_data(size_t lane, uint64_t offset, uint64_t length, size_t carried) {
    Frame frame = frame_of_send(FrameType::kData);
    frame.offset = offset;
    say_frame(*lanes[lane], frame, std::string(carried, 'x'), length);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until rank 0 has read it
  }

  std::vector<std::unique_ptr<Stranger>> lanes;
};

// A receive of rank 0 from rank 1 whose memory is freed as soon as it has failed: if the engine
// used it later, the sanitizer would find it.
class Receive final {
 public:
  explicit Receive(Cluster& cluster) : memory_(kBytes) {
    Operation operation;
    operation.kind = Collective::kReceive;
    operation.dtype = Dtype::kUint8;
    operation.peer = 1;
    operation.outputs = {testing::span(memory_)};
    result_ = start(cluster[0], 0, std::move(operation));
  }
  std::string error() {
    std::string error = text_of(result_);
    memory_ = {};
    return error;
  }

 private:
  std::vector<uint8_t> memory_;
  Result result_;
};

void check_fault_of_rank_1(const Engine& engine) {
  try {
    std::rethrow_exception(engine.failure());
  } catch (const Error& error) {
    CHECK(error.fault()->kind == FaultKind::kPeer);
    CHECK_EQ(1, error.fault()->culprit);
  }
}

// Two lanes carry the same part of a message at a time.
void overlapping_parts_are_refused() {
  Cluster cluster = cluster_with_lanes(2, 4);
  Receive receive(cluster);
  Member member(cluster);
  member.say_data(1, 0, kBytes, 100);
  member.say_data(2, 0, kBytes, kBytes);
  CHECK_CONTAINS("but this rank expected byte 4000 next", receive.error());
  check_fault_of_rank_1(cluster[0]);
  member.lanes[1]->say(std::string(kBytes - 100, 'y').data(), kBytes - 100);
  member.lanes[2]->say(std::string(kBytes, 'z').data(), kBytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

// More bytes are on their way than the message has.
void parts_beyond_the_message_are_refused() {
  Cluster cluster = cluster_with_lanes(2, 4);
  Receive receive(cluster);
  Member member(cluster);
  member.say_data(1, 0, kBytes / 2, 10);
  member.say_data(2, kBytes / 2, kBytes / 2, 10);
  member.say_data(3, kBytes, kBytes, kBytes);
  CHECK_CONTAINS("but this rank expected byte 4000 next", receive.error());
  check_fault_of_rank_1(cluster[0]);
}

// Parts on several lanes are correct as long as each byte comes once.
void parts_on_several_lanes_complete_a_message() {
  Cluster cluster = cluster_with_lanes(2, 4);
  Receive receive(cluster);
  Member member(cluster);
  member.say_data(1, 0, kBytes / 2, 10);
  member.say_data(2, kBytes / 2, kBytes / 2, kBytes / 2);
  const std::string rest(kBytes / 2 - 10, 'x');
  member.lanes[1]->say(rest.data(), rest.size());
  CHECK(receive.error().empty());
}

// Control frames of two lanes would share one buffer.
void control_frames_on_additional_lanes_are_refused() {
  Cluster cluster = cluster_with_lanes(2, 4);
  Receive receive(cluster);
  Member member(cluster);
  Frame abort;
  abort.type = FrameType::kAbort;
  say_frame(*member.lanes[1], abort, std::string(10, '\0'), 8192);
  CHECK_CONTAINS("sent a frame over an additional lane that belongs to lane 0", receive.error());
  check_fault_of_rank_1(cluster[0]);
  Frame longer = abort;
  say_frame(*member.lanes[2], longer, std::string(10, '\0'), 20);
  member.lanes[1]->say(std::string(8182, '\0').data(), 8182);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

void check_sum(Cluster& cluster) {
  std::vector<std::vector<float>> data(static_cast<size_t>(cluster.size()),
                                       std::vector<float>(1000, 1));
  std::vector<Result> results;
  for (int rank = 0; rank < cluster.size(); ++rank) {
    results.push_back(start(cluster[rank], 0, sum_of(data[static_cast<size_t>(rank)])));
  }
  for (Result& result : results) CHECK(text_of(result).empty());
}

void check_rejected(Cluster& cluster, const Hello& hello, const std::string& reason) {
  Stranger lane(cluster[0].endpoint());
  lane.greet(kCredentials, hello);
  CHECK(lane.answer() == Answer::kRejected);
  CHECK(lane.is_dropped());
  CHECK_CONTAINS(reason, cluster.log());
}

// With several lanes there are more links than ranks.
void ranks_that_do_not_exist_are_rejected() {
  Cluster cluster = cluster_with_lanes(3, 4);
  for (const uint32_t rank : {3u, 11u, 12u, 0x80000003u}) {
    check_rejected(cluster, hello_of(rank, 0, 3), "claims to be rank " + std::to_string(rank));
  }
  check_sum(cluster);
}

void lanes_beyond_the_tuned_number_are_rejected() {
  Cluster cluster = cluster_with_lanes(2, 1);
  check_sum(cluster);
  Stranger early(cluster[0].endpoint());
  early.greet(kCredentials, hello_of(1, 0, 15));  // a tuning may still want it
  CHECK(early.answer() == Answer::kAccepted);
  Tuning tuning;
  tuning.lanes = 2;
  for (int rank = 0; rank < 2; ++rank) cluster[rank].tune(tuning, true);
  check_sum(cluster);
  check_rejected(cluster, hello_of(1, 0, 2), "two ranks have at most 2 connections");
  check_rejected(cluster, hello_of(1, 0, 0xffffffffu), "requests connection number 4294967295");
  check_sum(cluster);
}

void additional_lanes_of_a_rank_that_shares_memory_are_rejected() {
  Cluster cluster(2, Network::kLocal);
  check_sum(cluster);
  check_rejected(cluster, hello_of(1, 0, 1), "rank 1 shares memory with this rank");
  check_sum(cluster);
}

// A member that hangs up, and whose process lives on, holds up the others for the time of silence.
void lanes_of_a_lost_rank_are_rejected() {
  Cluster cluster = cluster_with_lanes(3, 4, std::chrono::seconds(1));
  Stranger(cluster[0].endpoint()).enter(hello_of(1, 0));
  Receive receive(cluster);
  CHECK_CONTAINS("rank 1 on algo-2 closed its connection, and there has been no other one for 1 s",
                 receive.error());
  check_rejected(cluster, hello_of(1, 0, 2), "rank 1 is lost already");
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(overlapping_parts_are_refused);
  RUN(parts_beyond_the_message_are_refused);
  RUN(parts_on_several_lanes_complete_a_message);
  RUN(control_frames_on_additional_lanes_are_refused);
  RUN(ranks_that_do_not_exist_are_rejected);
  RUN(lanes_beyond_the_tuned_number_are_rejected);
  RUN(additional_lanes_of_a_rank_that_shares_memory_are_rejected);
  RUN(lanes_of_a_lost_rank_are_rejected);
}
