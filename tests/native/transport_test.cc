// SPDX-License-Identifier: Apache-2.0
// Tests of the authentication handshake, of connections from other programs, and of lost peers.
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "check.h"
#include "cluster.h"
#include "stranger.h"
#include "two_processes.h"

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
using testing::TwoProcesses;

void a_hello_is_good_for_one_connection_only() {
  Nonce nonce{};
  nonce[0] = 1;
  const Hello sent = hello_of(3, 1);
  const HelloBytes bytes = encode(kCredentials, sent, nonce);
  Hello read;
  CHECK(verify(kCredentials, bytes, nonce, &read).fault.empty());
  CHECK_EQ(3u, read.rank);
  CHECK_EQ(1u, read.wanted);
  Nonce other = nonce;
  other[31] = 1;
  CHECK_CONTAINS("secret", verify(kCredentials, bytes, other, &read).fault);
  CHECK_CONTAINS("secret", verify({"another secret", {42}}, bytes, nonce, &read).fault);
  CHECK_CONTAINS("another job", verify({kCredentials.secret, {43}}, bytes, nonce, &read).fault);
  // The two proofs differ, so neither can be reflected.
  const AnswerBytes answer = accept_answer(kCredentials, sent, nonce, 0);
  CHECK(!std::equal(answer.begin(), answer.begin() + 32, bytes.begin() + 64));
  // The number of received bytes is part of the proof.
  CHECK(accept_answer(kCredentials, sent, nonce, 5) != answer);
  CHECK_EQ(5u, received_in(accept_answer(kCredentials, sent, nonce, 5)));
}

void a_damaged_hello_is_refused() {
  const Nonce nonce{};
  const HelloBytes good = encode(kCredentials, hello_of(3, 1), nonce);
  for (size_t i = 0; i < good.size(); ++i) {
    HelloBytes bad = good;
    bad[i] ^= 1;
    Hello read;
    CHECK(!verify(kCredentials, bad, nonce, &read).fault.empty());
  }
}

void check_sum(Cluster& cluster) {
  std::vector<std::vector<float>> data(static_cast<size_t>(cluster.size()),
                                       std::vector<float>(1000, 1));
  std::vector<Result> results;
  for (int rank = 0; rank < cluster.size(); ++rank) {
    results.push_back(start(cluster[rank], 0, sum_of(data[static_cast<size_t>(rank)])));
  }
  for (Result& result : results) CHECK(text_of(result).empty());
  CHECK_EQ(static_cast<float>(cluster.size()), data[0][999]);
}

void strangers_are_dropped_and_the_job_goes_on() {
  Cluster cluster(3, Network::kTcp);
  const Endpoint door = cluster[0].endpoint();
  std::minstd_rand random(1);
  std::vector<uint8_t> noise(4096);
  for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random() >> 7);
  Stranger noisy(door);
  noisy.say(noise.data(), noise.size());
  CHECK(noisy.hear_nonce() != Nonce{} && noisy.is_dropped());
  CHECK_CONTAINS("dropped a connection from 127.0.0.1", cluster.log());
  CHECK_CONTAINS("the remote process does not use the smdist protocol", cluster.log());

  Stranger impostor(door);
  impostor.greet({"a guess", {42}}, hello_of(1, 0));
  CHECK(impostor.answer() == Stranger::Answer::kWrongProof);
  CHECK(impostor.is_dropped());
  CHECK_CONTAINS("the remote process does not know the job's secret", cluster.log());

  Stranger earlier(door);
  earlier.greet({kCredentials.secret, {41}}, hello_of(1, 0));
  CHECK(earlier.is_dropped());
  CHECK_CONTAINS("the remote process belongs to another job", cluster.log());

  Stranger lost(door);
  lost.greet(kCredentials, hello_of(1, 2));
  CHECK(lost.is_dropped());
  CHECK_CONTAINS("the remote process wants to reach rank 2", cluster.log());

  Stranger upstart(door);
  upstart.greet(kCredentials, hello_of(3, 0));
  CHECK(upstart.is_dropped());
  CHECK_CONTAINS("the remote process claims to be rank 3", cluster.log());
  check_sum(cluster);

  Stranger twin(door);  // rank 1 is connected already
  twin.greet(kCredentials, hello_of(1, 0));
  CHECK(twin.is_dropped());
  CHECK_CONTAINS("rank 1 opened this connection already", cluster.log());
  check_sum(cluster);
  CHECK(cluster.log().find("between tests") == std::string::npos);
}

void many_silent_strangers_do_not_keep_ranks_out() {
  Cluster cluster(2, Network::kTcp);
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 100; ++i) {
    crowd.push_back(std::make_unique<Stranger>(cluster[0].endpoint()));
  }
  check_sum(cluster);
  CHECK_CONTAINS("there are more than 64 connections without authentication from its address",
                 cluster.log());
}

// A member that knows the secret and then sends invalid bytes ends the job; the error names it.
void nonsense_from_a_member_is_a_peer_error() {
  Cluster cluster(2, Network::kTcp);
  Stranger insider(cluster[0].endpoint());
  insider.greet(kCredentials, hello_of(1, 0));
  CHECK(insider.answer() == Stranger::Answer::kAccepted);
  insider.confirm();
  const std::string nonsense(48, 'x');
  insider.say(nonsense.data(), nonsense.size());
  CHECK(insider.is_dropped());
  std::vector<float> values(10);
  Result result = start(cluster[0], 0, sum_of(values));
  CHECK_CONTAINS("PeerError: rank 1 on algo-2 sent a malformed frame: its magic number is wrong",
                 text_of(result));
}

// The kernel closes the connections of a killed process, and the peer notices.
void a_killed_process_is_noticed() {
  TwoProcesses both({}, [](Engine& engine) {
    std::vector<float> values(1000, 1);
    start(engine, 0, sum_of(values)).wait();
  });
  std::vector<float> values(1000, 1);
  Result first = start(both.engine(), 0, sum_of(values));
  CHECK(text_of(first).empty());
  Result second = start(both.engine(), 0, sum_of(values));
  both.kill();
  const auto begin = std::chrono::steady_clock::now();
  CHECK_CONTAINS(
      "PeerError: operation 1 of group 0, all_reduce(sum, float32, 1000): rank 1 closed "
      "its connection",
      text_of(second));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
}

Operation broadcast_of(std::vector<float>& values) {
  Operation operation = sum_of(values);
  operation.kind = Collective::kBroadcast;
  operation.root = 0;
  return operation;
}

// Reads while the engine's thread writes.
__attribute__((no_sanitize("thread"))) void await_value(const std::vector<float>& values) {
  const volatile float* first = values.data();
  while (*first == 0) ::usleep(100);
}

double processor_seconds() {
  timespec now{};
  CHECK_EQ(0, ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Spinning is for short waits: a rank that waits for the network sleeps.
void a_rank_that_waits_for_the_network_sleeps() {
  constexpr size_t kCount = 64 << 20;  // far more than socket buffers hold
  Options options;
  options.hosts = {0, 1};
  options.pause = std::chrono::seconds(2);
  TwoProcesses both(options, [](Engine& engine) {
    std::vector<float> values(kCount);
    Result result = start(engine, 0, broadcast_of(values));
    await_value(values);
    ::raise(SIGSTOP);
  });
  std::vector<float> values(kCount, 1);
  Result result = start(both.engine(), 0, broadcast_of(values));
  both.await_stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // socket buffers are full by now
  const double begin = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  CHECK(processor_seconds() - begin < 0.1);
  both.kill();
  CHECK_CONTAINS("rank 1 closed its connection", text_of(result));
}

void only_numeric_addresses_are_bound() {
  Options options;
  options.bind_address = "localhost";
  try {
    Engine engine(options);
    CHECK(false);
  } catch (const UsageError& error) {
    CHECK_CONTAINS("'localhost' is not a numeric IPv4 or IPv6 address", error.what());
  }
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(a_killed_process_is_noticed);
  RUN(a_rank_that_waits_for_the_network_sleeps);
  RUN(a_hello_is_good_for_one_connection_only);
  RUN(a_damaged_hello_is_refused);
  RUN(strangers_are_dropped_and_the_job_goes_on);
  RUN(many_silent_strangers_do_not_keep_ranks_out);
  RUN(nonsense_from_a_member_is_a_peer_error);
  RUN(only_numeric_addresses_are_bound);
}
