// SPDX-License-Identifier: Apache-2.0
// Messages from one rank to another: how they match, and how they end.
#include <thread>

#include "check.h"
#include "cluster.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::Network;
using testing::Result;
using testing::span;
using testing::start;
using testing::text_of;
using Ints = std::vector<int32_t>;

constexpr Network kNetworks[] = {Network::kMemory, Network::kShared, Network::kTcp,
                                 Network::kLocal};

Operation send(Ints& values, int to, uint32_t tag = 0) {
  Operation operation;
  operation.kind = Collective::kSend;
  operation.dtype = Dtype::kInt32;
  operation.peer = to;
  operation.tag = tag;
  operation.inputs = {span(values)};
  return operation;
}

Operation receive(Ints& values, int from, uint32_t tag = 0, int* source = nullptr) {
  Operation operation;
  operation.kind = Collective::kReceive;
  operation.dtype = Dtype::kInt32;
  operation.peer = from;
  operation.tag = tag;
  operation.outputs = {span(values)};
  operation.source = source;
  return operation;
}

void expect_success(Result result) {
  const std::string error = text_of(result);
  if (!error.empty()) CHECK_CONTAINS("no error", error);
}

// Give a message without a posted receive the time to arrive.
void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

void a_message_arrives_whole() {
  for (const Network network : kNetworks) {
    Cluster cluster(2, network);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{100'000}}) {
      for (const bool is_receiver_first : {false, true}) {
        Ints sent(count, 7);
        Ints got(count, 0);
        int source = -2;
        const auto begin_receive = [&] {
          return start(cluster[1], 0, receive(got, 0, 3, &source));
        };
        Result received;
        if (is_receiver_first) received = begin_receive();
        settle();
        Result left = start(cluster[0], 0, send(sent, 1, 3));
        settle();
        if (!is_receiver_first) received = begin_receive();
        expect_success(std::move(left));
        expect_success(std::move(received));
        CHECK(sent == got);
        CHECK_EQ(0, source);
      }
    }
  }
}

void messages_of_a_tag_keep_their_order() {
  Cluster cluster(2);
  Ints values[4] = {{0}, {1}, {2}, {3}};
  Ints got[4] = {{9}, {9}, {9}, {9}};
  std::vector<Result> results;
  for (int i = 0; i < 4; ++i) {
    results.push_back(start(cluster[0], 0, send(values[i], 1, static_cast<uint32_t>(i % 2))));
  }
  // Receive the messages of the other tag first.
  for (const int i : {1, 3, 0, 2}) {
    results.push_back(start(cluster[1], 0, receive(got[i], 0, static_cast<uint32_t>(i % 2))));
  }
  for (Result& result : results) expect_success(std::move(result));
  for (int i = 0; i < 4; ++i) CHECK_EQ(i, got[i][0]);
}

void messages_overlap_collectives_and_each_other() {
  Cluster cluster(2, Network::kTcp);
  std::vector<float> sums[2] = {{1}, {1}};
  Ints values[2] = {Ints(50'000, 1), Ints(50'000, 2)};
  Ints got[2] = {Ints(50'000), Ints(50'000)};
  std::vector<Result> results;
  for (int rank = 0; rank < 2; ++rank) {
    if (rank == 1) results.push_back(start(cluster[1], 0, testing::sum_of(sums[1])));
    results.push_back(start(cluster[rank], 0, send(values[rank], 1 - rank)));
    if (rank == 0) results.push_back(start(cluster[0], 0, testing::sum_of(sums[0])));
    results.push_back(start(cluster[rank], 0, receive(got[rank], 1 - rank)));
  }
  for (Result& result : results) expect_success(std::move(result));
  CHECK(values[0] == got[1]);
  CHECK(values[1] == got[0]);
  CHECK_EQ(2.0f, sums[0][0]);
}

void a_receive_from_any_takes_the_first_message() {
  for (const bool is_receiver_first : {false, true}) {
    Cluster cluster(3);
    Ints values[3] = {{0}, {11}, {22}};
    Ints got[2] = {{0}, {0}};
    int source[2] = {-2, -2};
    std::vector<Result> received;
    const auto begin_receives = [&] {
      for (int i = 0; i < 2; ++i) {
        received.push_back(start(cluster[0], 0, receive(got[i], kAnyRank, 5, &source[i])));
      }
    };
    if (is_receiver_first) begin_receives();
    Result second = start(cluster[2], 0, send(values[2], 0, 5));
    settle();
    Result first = start(cluster[1], 0, send(values[1], 0, 5));
    settle();
    if (!is_receiver_first) begin_receives();
    for (Result& result : received) expect_success(std::move(result));
    expect_success(std::move(first));
    expect_success(std::move(second));
    CHECK_EQ(2, source[0]);
    CHECK_EQ(1, source[1]);
    CHECK_EQ(22, got[0][0]);
    CHECK_EQ(11, got[1][0]);
  }
}

// There are no connections yet. The message arrives, whichever side has to connect.
void a_receive_from_any_reaches_every_rank() {
  for (int sender = 0; sender < 3; ++sender) {
    for (int receiver = 0; receiver < 3; ++receiver) {
      if (sender == receiver) continue;
      Cluster cluster(3, Network::kTcp);
      Ints value = {5};
      Ints got = {0};
      Result received = start(cluster[receiver], 0, receive(got, kAnyRank));
      expect_success(start(cluster[sender], 0, send(value, receiver)));
      expect_success(std::move(received));
      CHECK_EQ(5, got[0]);
    }
  }
}

void a_receive_from_any_fails_if_a_rank_dies_unconnected() {
  for (const int receiver : {0, 1}) {
    Cluster cluster(2, Network::kTcp);
    Ints got = {0};
    cluster.end(1 - receiver);
    Result received = start(cluster[receiver], 0, receive(got, kAnyRank));
    CHECK_CONTAINS("PeerError: ", text_of(received));
  }
}

// The receive from rank 1 comes after the one from any rank.
void receives_match_in_the_order_of_their_calls() {
  Cluster cluster(3);
  Ints values[3] = {{0}, {11}, {22}};
  Ints again = {111};
  Ints any = {0};
  Ints named = {0};
  int source = -2;
  std::vector<Result> results;
  results.push_back(start(cluster[0], 0, receive(any, kAnyRank, 0, &source)));
  results.push_back(start(cluster[0], 0, receive(named, 1)));
  results.push_back(start(cluster[1], 0, send(values[1], 0)));
  settle();
  results.push_back(start(cluster[1], 0, send(again, 0)));
  for (Result& result : results) expect_success(std::move(result));
  CHECK_EQ(1, source);
  CHECK_EQ(11, any[0]);
  CHECK_EQ(111, named[0]);
}

// It ends the message on both sides, and nothing else.
void messages_that_do_not_fit_are_an_error_on_both_ranks() {
  Cluster cluster(3);
  Ints five(5);
  Ints four(4);
  std::vector<float> sum = {1};
  Result pending = start(cluster[2], 0, testing::sum_of(sum));
  Result received = start(cluster[1], 0, receive(four, 0, 1));
  Result sent = start(cluster[0], 0, send(five, 1, 1));
  for (Result* result : {&received, &sent}) {
    const std::string error = text_of(*result);
    CHECK_CONTAINS("UsageError: ", error);
    CHECK_CONTAINS("rank 0 on algo-1 called send(int32, 5)", error);
    CHECK_CONTAINS("rank 1 on algo-2 called receive(int32, 4)", error);
    CHECK_CONTAINS("as message 0 with tag 1 of group 0", error);
  }
  std::vector<float> others[] = {{1}, {1}};
  Result first = start(cluster[0], 0, testing::sum_of(others[0]));
  Result second = start(cluster[1], 0, testing::sum_of(others[1]));
  for (Result* result : {&pending, &first, &second}) expect_success(std::move(*result));
}

void a_receive_whose_sender_is_gone_ends() {
  for (const int from : {0, kAnyRank}) {
    Cluster cluster(2, Network::kTcp);
    Ints value = {1};
    Ints got = {0};
    Result first = start(cluster[1], 0, receive(got, 0));
    expect_success(start(cluster[0], 0, send(value, 1)));
    expect_success(std::move(first));
    Result never = start(cluster[1], 0, receive(got, from));
    cluster.end(0);
    const std::string error = text_of(never);
    CHECK_CONTAINS("PeerError: ", error);
    CHECK_CONTAINS("rank 0 on algo-1 has left the group", error);
  }
}

void a_receive_without_a_send_times_out() {
  for (const int from : {0, kAnyRank}) {
    Cluster cluster(2);
    Ints value = {1};
    Operation operation = receive(value, from, 4);
    operation.timeout = std::chrono::milliseconds(100);
    Result result = start(cluster[1], 0, std::move(operation));
    const std::string error = text_of(result);
    CHECK_CONTAINS("TimeoutError: ", error);
    CHECK_CONTAINS("with tag 4 of group 0, receive(int32, 1): the timeout of 100 ms has expired",
                   error);
    CHECK_CONTAINS("Every ", error);
  }
}

void a_message_needs_another_rank() {
  Cluster cluster(2);
  Ints value = {1};
  for (const int peer : {0, 2, -3}) {
    try {
      start(cluster[0], 0, send(value, peer));
      CHECK(false);
    } catch (const UsageError&) {
    }
  }
}

void a_receive_from_any_needs_another_rank() {
  Cluster cluster(1);
  Ints value = {1};
  try {
    start(cluster[0], 0, receive(value, kAnyRank));
    CHECK(false);
  } catch (const UsageError& error) {
    CHECK_CONTAINS("no other rank", error.what());
  }
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(a_message_arrives_whole);
  RUN(messages_of_a_tag_keep_their_order);
  RUN(messages_overlap_collectives_and_each_other);
  RUN(a_receive_from_any_takes_the_first_message);
  RUN(a_receive_from_any_reaches_every_rank);
  RUN(a_receive_from_any_fails_if_a_rank_dies_unconnected);
  RUN(receives_match_in_the_order_of_their_calls);
  RUN(messages_that_do_not_fit_are_an_error_on_both_ranks);
  RUN(a_receive_whose_sender_is_gone_ends);
  RUN(a_receive_without_a_send_times_out);
  RUN(a_message_needs_another_rank);
  RUN(a_receive_from_any_needs_another_rank);
}
