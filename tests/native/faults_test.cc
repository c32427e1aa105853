// SPDX-License-Identifier: Apache-2.0
// Tests that a job fails fast, on every rank, with a message that names the culprit.
#include <chrono>
#include <thread>

#include "check.h"
#include "cluster.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::Network;
using testing::Result;
using testing::start;
using testing::sum_of;
using testing::text_of;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr Network kNetworks[] = {Network::kMemory, Network::kShared, Network::kTcp,
                                 Network::kLocal};
using Data = std::vector<std::vector<float>>;

Data data_of(int size, size_t count) {
  return Data(static_cast<size_t>(size), std::vector<float>(count, 1));
}

// Starts a sum on the given ranks.
std::vector<Result> start_sums(Cluster& cluster, Data& data, const std::vector<int>& ranks,
                               milliseconds timeout = milliseconds(30'000)) {
  std::vector<Result> results;
  for (const int rank : ranks) {
    Operation operation = sum_of(data[static_cast<size_t>(rank)]);
    operation.timeout = timeout;
    results.push_back(start(cluster[rank], 0, std::move(operation)));
  }
  return results;
}

void warm_up(Cluster& cluster) {
  Data data = data_of(cluster.size(), 100);
  std::vector<int> all;
  for (int rank = 0; rank < cluster.size(); ++rank) all.push_back(rank);
  for (Result& result : start_sums(cluster, data, all)) CHECK(text_of(result).empty());
}

void different_calls_fail_on_every_rank() {
  for (const Network network : kNetworks) {
    Cluster cluster(3, network);
    warm_up(cluster);
    Data data = data_of(3, 10);
    auto results = start_sums(cluster, data, {1, 2});
    Operation other = sum_of(data[0]);
    other.kind = Collective::kBroadcast;
    results.push_back(start(cluster[0], 0, std::move(other)));
    for (Result& result : results) {
      const std::string text = text_of(result);
      CHECK_CONTAINS("UsageError: rank ", text);
      CHECK_CONTAINS("called all_reduce(sum, float32, 10)", text);
      CHECK_CONTAINS(
          "rank 0 on algo-1 called broadcast(float32, 10, root 0) as operation 1 of "
          "group 0",
          text);
    }
  }
}

void different_factors_fail_on_every_rank() {
  Cluster cluster(2);
  Data data = data_of(2, 10);
  auto results = start_sums(cluster, data, {1});
  Operation other = sum_of(data[0]);
  other.scale = 0.5;
  results.push_back(start(cluster[0], 0, std::move(other)));
  for (Result& result : results) {
    const std::string text = text_of(result);
    CHECK_CONTAINS("UsageError: rank ", text);
    CHECK_CONTAINS("called all_reduce(sum, scale 0.5, float32, 10)", text);
    CHECK_CONTAINS("called all_reduce(sum, float32, 10)", text);
  }
}

// Also a rank that has no data waits for all others, whoever comes first.
void an_empty_buffer_is_a_mismatch() {
  for (const int first : {0, 1}) {
    Cluster cluster(2);
    Data data = {std::vector<float>(), std::vector<float>(10)};
    auto early = start_sums(cluster, data, {first});
    std::this_thread::sleep_for(milliseconds(50));
    auto late = start_sums(cluster, data, {1 - first});
    for (Result* result : {&early[0], &late[0]}) {
      const std::string text = text_of(*result);
      CHECK_CONTAINS("UsageError: rank ", text);
      CHECK_CONTAINS("rank 0 on algo-1 called all_reduce(sum, float32, 0)", text);
    }
  }
}

void a_timeout_names_the_missing_rank() {
  for (const Network network : kNetworks) {
    Cluster cluster(4, network);
    Data data = data_of(4, 5000);
    const auto begin = Clock::now();
    auto results = start_sums(cluster, data, {0, 1, 3}, milliseconds(200));
    for (Result& result : results) {
      const std::string text = text_of(result);
      CHECK_CONTAINS("TimeoutError: operation 0 of group 0, all_reduce(sum, float32, 5000)", text);
      CHECK_CONTAINS("the timeout of 200 ms has expired on rank ", text);
      CHECK_CONTAINS(", which waits for rank 2 on algo-3", text);
    }
    CHECK(Clock::now() - begin < std::chrono::seconds(3));
    auto late = start_sums(cluster, data, {2});  // fails in the same way
    CHECK_CONTAINS("TimeoutError", text_of(late[0]));
  }
}

// One element has one owner, and only the owner knows which rank is missing.
void a_timeout_is_reported_by_the_rank_that_knows_the_culprit() {
  for (const Network network : kNetworks) {
    Cluster cluster(3, network);
    Data data = data_of(3, 1);
    auto results = start_sums(cluster, data, {0, 2}, milliseconds(200));
    for (Result& result : results)
      CHECK_CONTAINS("which waits for rank 1 on algo-2", text_of(result));
  }
}

void a_dead_rank_fails_the_operations_that_need_it() {
  Cluster cluster(4);
  cluster.hub->delay(milliseconds(5), 3);
  Data data = data_of(4, 100'000);
  auto results = start_sums(cluster, data, {0, 1, 2});
  std::this_thread::sleep_for(milliseconds(20));
  const auto begin = Clock::now();
  cluster.hub->kill(3);
  for (Result& result : results) {
    const std::string text = text_of(result);
    CHECK_CONTAINS("PeerError: operation 0 of group 0", text);
    CHECK_CONTAINS("rank 3 on algo-4 closed its connection before it sent its share of the data",
                   text);
  }
  CHECK(Clock::now() - begin < std::chrono::seconds(2));
  auto later = start_sums(cluster, data, {1});
  CHECK_CONTAINS("rank 3 on algo-4 closed its connection", text_of(later[0]));
}

// A rank dies while data of all ranks are in flight.
void a_rank_dies_while_data_are_in_flight() {
  for (int round = 0; round < 20; ++round) {
    Cluster cluster(4);
    cluster.hub->delay(milliseconds(2), static_cast<uint32_t>(round));
    Data data = data_of(4, 200'000);
    auto results = start_sums(cluster, data, {0, 1, 2, 3});
    std::this_thread::sleep_for(std::chrono::microseconds(1500 * round));
    cluster.hub->kill(2);
    for (size_t i : {0, 1, 3}) {
      const std::string text = text_of(results[i]);
      if (!text.empty()) CHECK_CONTAINS("PeerError", text);
    }
    text_of(results[2]);
    data = {};  // if the engine still used the memory, the sanitizer would find it
  }
}

Fault fault_of(const Engine& engine) {
  try {
    std::rethrow_exception(engine.failure());
  } catch (const Error& error) {
    return *error.fault();
  }
}

// Every rank knows kind, culprit and operation, no matter which rank found the fault.
void faults_are_data_on_every_rank() {
  for (const bool is_death : {true, false}) {
    Cluster cluster(3, is_death ? Network::kMemory : Network::kTcp);
    warm_up(cluster);
    Data data = data_of(3, 100'000);
    auto results = start_sums(cluster, data, {0, 1});
    if (is_death) {
      cluster.hub->kill(2);
    } else {
      cluster.end(2);
    }
    for (Result& result : results) CHECK(!text_of(result).empty());
    for (const int rank : {0, 1}) {
      const Fault fault = fault_of(cluster[rank]);
      CHECK(fault.kind == (is_death ? FaultKind::kLost : FaultKind::kLeft));
      CHECK_EQ(2, fault.culprit);
      CHECK(fault.operation == "all_reduce");
    }
  }
}

void a_rank_that_left_fails_the_operations_that_need_it() {
  for (const Network network : kNetworks) {
    Cluster cluster(3, network);
    warm_up(cluster);
    for (const int rank : {0, 1}) cluster[rank].add_group(5, {0, 1});
    cluster.end(2);
    std::this_thread::sleep_for(milliseconds(30));
    Data data = data_of(3, 1000);
    std::vector<Result> results;
    for (const int rank : {0, 1}) {  // these operations do not need rank 2
      results.push_back(start(cluster[rank], 5, sum_of(data[static_cast<size_t>(rank)])));
    }
    for (Result& result : results) CHECK(text_of(result).empty());
    auto failing = start_sums(cluster, data, {0, 1});
    for (Result& result : failing) {
      CHECK_CONTAINS("rank 2 on algo-3 has left the group", text_of(result));
    }
  }
}

// The last operation ends on some ranks earlier than on others, and those may leave at once.
void leaving_early_fails_no_other_rank() {
#ifdef __SANITIZE_THREAD__
  constexpr int kRounds = 15;
#else
  constexpr int kRounds = 45;
#endif
  const auto pausing = [](Options& options) { options.pause = std::chrono::microseconds(50); };
  for (const Network network : kNetworks) {
    for (int round = 0; round < kRounds; ++round) {
      Cluster cluster(3, network, pausing);
      Data data = data_of(3, round % 3 == 0 ? 10'000 : 200'000);
      auto results = start_sums(cluster, data, {0, 1, 2});
      std::vector<std::thread> threads;
      for (int rank = 0; rank < 3; ++rank) {
        threads.emplace_back([&, rank] {
          const std::string text = text_of(results[static_cast<size_t>(rank)]);
          if (!text.empty()) CHECK_CONTAINS("no error", text);
          cluster.end(rank);
        });
      }
      for (std::thread& thread : threads) thread.join();
      CHECK(cluster.log().empty());
    }
  }
}

void an_abort_reaches_every_rank() {
  for (const Network network : kNetworks) {
    for (const int aborter : {0, 3}) {  // even before any connection was made
      Cluster cluster(4, network);
      Data data = data_of(4, 100);
      std::vector<int> others;
      for (int rank = 0; rank < 4; ++rank) {
        if (rank != aborter) others.push_back(rank);
      }
      cluster[aborter].abort("the loss is not finite", "{\"step\": 7}");
      for (Result& result : start_sums(cluster, data, others)) {
        CHECK(text_of(result) == "Error: the loss is not finite");
      }
      for (int rank = 0; rank < 4; ++rank) {
        const Fault fault = fault_of(cluster[rank]);
        CHECK(fault.kind == FaultKind::kAborted);
        CHECK_EQ(aborter, fault.culprit);
        CHECK(fault.details == "{\"step\": 7}");
      }
      auto later = start_sums(cluster, data, {aborter});
      CHECK(text_of(later[0]) == "Error: the loss is not finite");
    }
  }
}

void a_death_before_the_first_connection_is_found() {
  for (const int dead : {0, 2}) {  // the side that accepts, and the side that connects
    Cluster cluster(3, Network::kTcp);
    Data data = data_of(3, 100);
    cluster.end(dead);
    const auto begin = Clock::now();
    auto results =
        start_sums(cluster, data, dead == 0 ? std::vector<int>{1, 2} : std::vector<int>{0, 1});
    for (Result& result : results) {
      const std::string text = text_of(result);
      CHECK_CONTAINS("PeerError: operation 0 of group 0", text);
      CHECK_CONTAINS("rank " + std::to_string(dead) + " on algo-" + std::to_string(dead + 1) +
                         " refused the connection",
                     text);
    }
    CHECK(Clock::now() - begin < std::chrono::seconds(4));
  }
}

void shutdown_is_quick_and_fails_what_is_pending() {
  for (const Network network : kNetworks) {
    Cluster cluster(3, network);
    warm_up(cluster);
    Data data = data_of(3, 1'000'000);
    auto results = start_sums(cluster, data, {0, 1});
    const auto begin = Clock::now();
    cluster[0].shutdown();
    cluster[0].shutdown();
    CHECK(Clock::now() - begin < milliseconds(900));
    CHECK_CONTAINS("rank 0 on algo-1 has shut its engine down", text_of(results[0]));
    CHECK_CONTAINS("rank 0 on algo-1 has left the group", text_of(results[1]));
  }
}

// A done callback may start the next operation.
void callbacks_may_submit() {
  Cluster cluster(2);
  Data data = data_of(2, 10);
  std::vector<std::promise<void>> ends(2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<size_t>(rank);
    Operation next = sum_of(data[r]);
    next.timeout = milliseconds(5000);
    next.done = [&ends, r](std::exception_ptr error) {
      CHECK(!error);
      ends[r].set_value();
    };
    Operation first = next;
    first.done = [&cluster, rank, next](std::exception_ptr error) {
      CHECK(!error);
      cluster[rank].submit(0, next);
    };
    cluster[rank].submit(0, first);
  }
  for (auto& end : ends) end.get_future().wait();
  CHECK_EQ(4.0f, data[0][0]);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(different_calls_fail_on_every_rank);
  RUN(different_factors_fail_on_every_rank);
  RUN(an_empty_buffer_is_a_mismatch);
  RUN(a_timeout_names_the_missing_rank);
  RUN(a_timeout_is_reported_by_the_rank_that_knows_the_culprit);
  RUN(a_dead_rank_fails_the_operations_that_need_it);
  RUN(a_rank_dies_while_data_are_in_flight);
  RUN(faults_are_data_on_every_rank);
  RUN(a_rank_that_left_fails_the_operations_that_need_it);
  RUN(leaving_early_fails_no_other_rank);
  RUN(an_abort_reaches_every_rank);
  RUN(a_death_before_the_first_connection_is_found);
  RUN(shutdown_is_quick_and_fails_what_is_pending);
  RUN(callbacks_may_submit);
}
