// SPDX-License-Identifier: Apache-2.0
// Tests that ranks which have joined answer all-reduces with zeros, in every size and algorithm,
// and that other collectives end on all ranks.
#include "smdist/joined_rank.h"

#include <chrono>
#include <thread>

#include "check.h"
#include "cluster.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;
using testing::Cluster;
using testing::Network;
using testing::start;
using testing::sum_of;
using testing::text_of;

constexpr uint32_t kControl = 7;
constexpr milliseconds kTimeout{20'000};

std::shared_ptr<Engine> engine_of(Cluster& cluster, int rank) {
  return std::shared_ptr<Engine>(&cluster[rank], [](Engine*) {});
}

std::vector<int> all(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

int join(Cluster& cluster, int rank) {
  JoinedRank joined(engine_of(cluster, rank), {0}, kControl, kTimeout);
  CHECK(joined.advance(kTimeout));
  return joined.last();
}

// Runs `body` on a thread for each rank.
template <typename Body>
void on_ranks(int size, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

// Rank r calls r + 1 all-reduces of each length; the ranks before it have joined at the last ones.
void check_uneven(int size, Network network) {
  Cluster cluster(size, network);
  for (int rank = 0; rank < size; ++rank) cluster[rank].add_group(kControl, all(size));
  on_ranks(size, [&](int rank) {
    for (int round = 0; round < 2; ++round) {
      for (int batch = 0; batch <= rank; ++batch) {
        std::vector<testing::Result> results;
        std::vector<std::vector<float>> values;
        for (const size_t length : {size_t{0}, size_t{1}, size_t{3000}, size_t{400'000}}) {
          values.emplace_back(length, static_cast<float>(rank + 1));
        }
        for (std::vector<float>& each : values) {
          results.push_back(start(cluster[rank], 0, sum_of(each)));
        }
        for (testing::Result& result : results) CHECK(text_of(result).empty());
        float expected = 0;
        for (int other = batch; other < size; ++other) expected += static_cast<float>(other + 1);
        for (const std::vector<float>& each : values) {
          for (const float value : each) CHECK(value == expected);
        }
      }
      CHECK(join(cluster, rank) == size - 1);
      std::vector<float> one(5, 1);
      testing::Result result = start(cluster[rank], 0, sum_of(one));
      CHECK(text_of(result).empty());
      CHECK(one[4] == static_cast<float>(size));
    }
  });
}

void ranks_with_less_data_are_answered_for_with_zeros() {
  for (const Network network : {Network::kMemory, Network::kShared, Network::kTcp}) {
    for (const int size : {2, 3, 5}) check_uneven(size, network);
  }
}

// Collectives of one call have one number; a rank that has joined answers all of them.
void calls_of_several_operations_are_answered_as_one() {
  Cluster cluster(3);
  for (int rank = 0; rank < 3; ++rank) cluster[rank].add_group(kControl, all(3));
  on_ranks(3, [&](int rank) {
    std::vector<float> first(100, 1), second(50, 2), alone(10, 3);
    if (rank > 0) {
      const auto call = std::make_shared<CallNumber>(CallNumber{600, 0, 0});
      Operation one = sum_of(first), two = sum_of(second);
      one.call = two.call = call;
      testing::Result results[] = {start(cluster[rank], 0, std::move(one)),
                                   start(cluster[rank], 0, std::move(two)),
                                   start(cluster[rank], 0, sum_of(alone))};
      for (testing::Result& result : results) CHECK(text_of(result).empty());
      CHECK(first[99] == 2 && second[49] == 4 && alone[9] == 6);
    }
    CHECK(join(cluster, rank) == 2);
  });
}

// Any collective but a sum or an average ends with an error that names the rank that has joined.
void other_collectives_end_with_an_error_that_names_the_rank() {
  Cluster cluster(3);
  for (int rank = 0; rank < 3; ++rank) cluster[rank].add_group(kControl, all(3));
  on_ranks(3, [&](int rank) {
    for (int round = 0; rank > 0 && round < 3; ++round) {
      std::vector<float> values(10, 1);
      Operation most = sum_of(values);
      most.op = ReduceOp::kMax;
      testing::Result refused = start(cluster[rank], 0, std::move(most));
      const std::string text = text_of(refused);
      CHECK(text.find("UsageError: rank 0") == 0);
      CHECK(text.find("has joined, and takes part only in") != std::string::npos);
      Operation barrier;
      testing::Result second = start(cluster[rank], 0, std::move(barrier));
      CHECK(text_of(second).find("has joined") != std::string::npos);
      testing::Result sum = start(cluster[rank], 0, sum_of(values));
      CHECK(text_of(sum).empty());
    }
    join(cluster, rank);
  });
}

// A rank of which nothing is heard is not awaited for ever.
void a_rank_that_never_joins_is_awaited_until_the_timeout() {
  Cluster cluster(2);
  for (int rank = 0; rank < 2; ++rank) cluster[rank].add_group(kControl, all(2));
  JoinedRank joined(engine_of(cluster, 0), {0}, kControl, milliseconds(200));
  CHECK(!joined.advance(milliseconds(20)));
  std::string text;
  try {
    joined.advance(kTimeout);
  } catch (...) {
    text = text_of(std::current_exception());
  }
  CHECK(text.find("TimeoutError") == 0);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(ranks_with_less_data_are_answered_for_with_zeros);
  RUN(calls_of_several_operations_are_answered_as_one);
  RUN(other_collectives_end_with_an_error_that_names_the_rank);
  RUN(a_rank_that_never_joins_is_awaited_until_the_timeout);
}
