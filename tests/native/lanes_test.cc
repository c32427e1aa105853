// SPDX-License-Identifier: Apache-2.0
// One connection or several connections between two ranks.
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include "check.h"
#include "cluster.h"
#include "transport/lane.h"
#include "transport/socket.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::Network;
using testing::Result;
using testing::start;
using testing::sum_of;
using testing::text_of;
using Floats = std::vector<float>;

class Listener final : public Sink {
 public:
  void on_connected(int) override {}
  Span on_header(int, const HeaderBytes&) override { return {}; }
  void on_message(int, const HeaderBytes&) override {}
  void on_sent(int, uint64_t token) override { sent.push_back(token); }
  void on_peer_lost(int, const std::string&) override {}

  std::vector<uint64_t> sent;
};

Message message_of(uint64_t token) {
  Message message;
  message.token = token;
  return message;
}

void messages_that_left_are_reported_before_the_loss() {
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  UniqueFd peer(ends[1]);
  Lane lane(1);
  lane.attach(UniqueFd(ends[0]));
  lane.send(message_of(7));
  lane.write_early();
  lane.send(message_of(8));  // does not leave
  peer.reset();
  Listener listener;
  lane.lose(&listener);
  CHECK_EQ(1u, listener.sent.size());
  CHECK_EQ(7u, listener.sent[0]);
}

int room_of(int fd) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  CHECK(::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length) == 0);
  return bytes / 2;
}

// If the receive buffer were smaller than the window offered to a peer, its packets could be
// dropped.
void the_receive_buffer_is_set_before_the_connection_and_never_shrinks() {
  constexpr int kKiB = 1 << 10;
  UniqueFd listener = listen_on("127.0.0.1");
  limit_receive_buffer(listener.get(), 48 * kKiB);
  UniqueFd dialled = begin_connect("127.0.0.1", local_endpoint(listener.get()), 32 * kKiB);
  CHECK_EQ(32 * kKiB, room_of(dialled.get()));
  UniqueFd accepted;
  while (!accepted.is_open()) accepted = accept_from(listener.get());
  CHECK_EQ(48 * kKiB, room_of(accepted.get()));
  widen_receive_buffer(accepted.get(), 40 * kKiB);
  CHECK_EQ(48 * kKiB, room_of(accepted.get()));
  widen_receive_buffer(accepted.get(), 64 * kKiB);
  CHECK_EQ(64 * kKiB, room_of(accepted.get()));
  widen_receive_buffer(accepted.get(), 0);
  CHECK_EQ(64 * kKiB, room_of(accepted.get()));
  widen_receive_buffer(accepted.get(),
                       128 * kKiB);  // unlimited so far: the kernel may have given more
  CHECK_EQ(64 * kKiB, room_of(accepted.get()));
}

uint16_t port_of_peer(int fd) {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  const bool is_connected = ::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  return is_connected && address.sin_family == AF_INET ? ntohs(address.sin_port) : 0;
}

// Connections of all ranks in this process.
std::vector<int> connections_to(const Engine& engine) {
  std::vector<int> found;
  for (int fd = 0; fd < 1024; ++fd) {
    if (port_of_peer(fd) == engine.endpoint().port) found.push_back(fd);
  }
  return found;
}

Cluster cluster_with_lanes(uint32_t lanes) {
  return Cluster(3, Network::kTcp, [&](Options& options) {
    options.hosts = {0, 1, 2};
    options.fragment_bytes = 64 << 10;
    options.tuning.lanes = lanes;
  });
}

std::vector<Result> start_sums(Cluster& cluster, std::vector<Floats>& data) {
  std::vector<Result> results;
  for (int rank = 0; rank < 3; ++rank) {
    data[static_cast<size_t>(rank)].assign(300'000, static_cast<float>(rank + 1));
    results.push_back(start(cluster[rank], 0, sum_of(data[static_cast<size_t>(rank)])));
  }
  return results;
}

void check_sum(Cluster& cluster) {
  std::vector<Floats> data(3);
  for (Result& result : start_sums(cluster, data)) CHECK(text_of(result).empty());
  for (const Floats& each : data) {
    for (const float value : each) CHECK_EQ(6.0F, value);
  }
}

void ranks_of_different_hosts_have_one_connection_per_lane() {
  for (const uint32_t lanes : {1u, 4u, kMaxLanes}) {
    Cluster cluster = cluster_with_lanes(lanes);
    for (int round = 0; round < 20; ++round) check_sum(cluster);
    CHECK_EQ(2 * lanes, connections_to(cluster[0]).size());
  }
}

void tuning_adds_lanes_to_a_running_engine() {
  Cluster cluster = cluster_with_lanes(1);
  check_sum(cluster);
  for (const uint32_t lanes : {3u, 2u}) {
    Tuning tuning;
    tuning.lanes = lanes;
    for (int rank = 0; rank < 3; ++rank) cluster[rank].tune(tuning);
    for (int round = 0; round < 20; ++round) check_sum(cluster);
    CHECK_EQ(6u, connections_to(cluster[0]).size());
  }
}

void a_lane_whose_connection_ends_goes_on_over_another_one() {
  Cluster cluster = cluster_with_lanes(4);
  for (int round = 0; round < 5; ++round) {
    check_sum(cluster);
    ::shutdown(connections_to(cluster[0])[2], SHUT_RDWR);
  }
  for (int round = 0; round < 5; ++round) check_sum(cluster);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(messages_that_left_are_reported_before_the_loss);
  RUN(the_receive_buffer_is_set_before_the_connection_and_never_shrinks);
  RUN(ranks_of_different_hosts_have_one_connection_per_lane);
  RUN(tuning_adds_lanes_to_a_running_engine);
  RUN(a_lane_whose_connection_ends_goes_on_over_another_one);
}
