// SPDX-License-Identifier: Apache-2.0
// Tests that operations with names start in one order on all ranks, whatever the order in which the
// ranks bring them, and that a name which some ranks lack is logged and ends the job.
#include "engine/name_order.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "check.h"
#include "cluster.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;
using testing::Cluster;
using testing::Network;
using testing::text_of;

constexpr Network kNetworks[] = {Network::kMemory, Network::kTcp};
constexpr uint32_t kGroup = 5;
constexpr milliseconds kDeadline{20'000};

// A cluster with a NameOrder on each rank, and what has happened to the operations.
class NamedCluster final {
 public:
  explicit NamedCluster(int size, Network network = Network::kMemory,
                        milliseconds late_after = milliseconds(10'000),
                        milliseconds timeout = milliseconds(60'000))
      : cluster_(size, network), ranks_(static_cast<size_t>(size)) {
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank) members.push_back(rank);
    for (int rank = 0; rank < size; ++rank) {
      Rank& here = ranks_[static_cast<size_t>(rank)];
      here.engine = std::shared_ptr<Engine>(&cluster_[rank], [](Engine*) {});
      here.engine->add_group(kGroup, members);
      const auto log = [this](const std::string& line) {
        const std::lock_guard<std::mutex> lock(mutex_);
        log_ += line + "\n";
      };
      here.order =
          NameOrder::create({here.engine, kGroup, members, rank, timeout, log, late_after});
    }
  }

  void bring(int rank, const std::string& name) {
    Rank& here = ranks_[static_cast<size_t>(rank)];
    const auto start = [this, &here, name] {
      const std::lock_guard<std::mutex> lock(mutex_);
      here.started.push_back(name);
      changed_.notify_all();
    };
    const auto fail = [this, &here](const std::exception_ptr& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      here.failures.push_back(text_of(error));
      changed_.notify_all();
    };
    here.order->bring(name, start, fail);
  }

  void shut_down(int rank) { ranks_[static_cast<size_t>(rank)].engine->shutdown(); }

  void join(int rank) { ranks_[static_cast<size_t>(rank)].order->join(); }

  // Returns the names that each of the first ranks has started, once these are so many.
  std::vector<std::vector<std::string>> started(size_t count, size_t num_ranks = SIZE_MAX) {
    return wait_for(count, [](const Rank& rank) { return rank.started; }, num_ranks);
  }

  // Returns the errors on each of the first ranks, once these are so many.
  std::vector<std::vector<std::string>> failures(size_t count, size_t num_ranks) {
    return wait_for(count, [](const Rank& rank) { return rank.failures; }, num_ranks);
  }

  std::string wait_for_log(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < end) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (log_.find(text) != std::string::npos) return log_;
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    return "no such line";
  }

 private:
  struct Rank {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<NameOrder> order;
    std::vector<std::string> started;   // guarded by mutex_
    std::vector<std::string> failures;  // guarded by mutex_
  };

  template <typename Read>
  std::vector<std::vector<std::string>> wait_for(size_t count, const Read& read,
                                                 size_t num_ranks = SIZE_MAX) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::vector<std::vector<std::string>> found;
    const bool is_there = changed_.wait_for(lock, kDeadline, [&] {
      found.clear();
      for (const Rank& rank : ranks_) {
        if (found.size() < num_ranks) found.push_back(read(rank));
      }
      return std::all_of(found.begin(), found.end(),
                         [&](const auto& each) { return each.size() >= count; });
    });
    CHECK(is_there);
    return found;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string log_;  // guarded by mutex_
  Cluster cluster_;
  std::vector<Rank> ranks_;  // destroyed before the engines
};

void names_start_in_one_order_whatever_the_order_of_calls() {
  constexpr size_t kNames = 60;
  for (const Network network : kNetworks) {
    NamedCluster cluster(3, network);
    std::vector<std::thread> callers;
    for (int rank = 0; rank < 3; ++rank) {
      for (size_t thread = 0; thread < 2; ++thread) {
        callers.emplace_back([&cluster, rank, thread] {
          std::vector<std::string> names;
          for (size_t i = thread; i < kNames; i += 2) names.push_back("sum " + std::to_string(i));
          std::mt19937 random(static_cast<uint32_t>(rank) * 7 + static_cast<uint32_t>(thread));
          std::shuffle(names.begin(), names.end(), random);
          for (const std::string& name : names) cluster.bring(rank, name);
        });
      }
    }
    for (std::thread& caller : callers) caller.join();
    auto started = cluster.started(kNames);
    CHECK(started[0] == started[1]);
    CHECK(started[0] == started[2]);
    std::sort(started[0].begin(), started[0].end());
    CHECK(std::unique(started[0].begin(), started[0].end()) == started[0].end());
  }
}

void a_name_that_is_brought_again_is_the_next_operation_of_that_name() {
  NamedCluster cluster(2);
  for (const char* name : {"a", "a", "b"}) cluster.bring(1, name);
  for (const char* name : {"b", "a", "a"}) cluster.bring(0, name);
  for (const std::vector<std::string>& each : cluster.started(3)) {
    CHECK_EQ(2, std::count(each.begin(), each.end(), "a"));
    CHECK_EQ(1, std::count(each.begin(), each.end(), "b"));
  }
}

void one_rank_starts_its_names_at_once() {
  NamedCluster cluster(1);
  cluster.bring(0, "a");
  CHECK_EQ(1U, cluster.started(1)[0].size());
}

void ranks_that_lack_a_name_are_logged_and_may_bring_it_later() {
  NamedCluster cluster(4, Network::kMemory, milliseconds(100));
  for (const int rank : {0, 2}) cluster.bring(rank, "late");
  const std::string log = cluster.wait_for_log("rank 2 has called");
  CHECK_CONTAINS("rank 2 has called the operation named 'late'", log);
  CHECK_CONTAINS("but these have not: rank 1, rank 3", log);
  for (const int rank : {1, 3}) cluster.bring(rank, "late");
  for (const auto& each : cluster.started(1)) CHECK_EQ(1U, each.size());
}

void a_first_rank_that_uses_no_names_is_logged() {
  NamedCluster cluster(2, Network::kMemory, milliseconds(100));
  cluster.bring(1, "only here");
  CHECK_CONTAINS("but these have not: rank 0", cluster.wait_for_log("rank 1 has called"));
}

void a_name_that_a_rank_never_brings_ends_the_job_at_the_timeout() {
  NamedCluster cluster(3, Network::kMemory, milliseconds(500), milliseconds(1'000));
  for (const int rank : {0, 1}) cluster.bring(rank, "never");
  for (const std::vector<std::string>& each : cluster.failures(1, 2)) {
    CHECK_CONTAINS("'never' was not called on all ranks within 1 s", each[0]);
  }
  cluster.bring(0, "after");
  CHECK_CONTAINS("'never' was not called", cluster.failures(2, 1)[0][1]);
}

// Its thread has a late name to tell other ranks of, when the engine takes no messages any more.
void a_first_rank_whose_engine_is_shut_down_tells_no_late_names() {
  NamedCluster cluster(3, Network::kMemory, milliseconds(500));
  for (const int rank : {0, 1}) cluster.bring(rank, "late");
  std::this_thread::sleep_for(milliseconds(100));  // rank 1's message arrives
  cluster.shut_down(0);
  CHECK_EQ(1U, cluster.failures(1, 1)[0].size());
  std::this_thread::sleep_for(milliseconds(600));
}

void names_start_without_a_rank_that_has_joined_until_all_have() {
  NamedCluster cluster(3);
  cluster.bring(0, "before");
  cluster.bring(1, "before");
  cluster.join(2);
  for (const char* name : {"a", "a"}) cluster.bring(1, name);
  for (const char* name : {"a", "a"}) cluster.bring(0, name);
  cluster.started(3, 2);
  cluster.join(0);
  cluster.join(1);
  for (int rank = 0; rank < 3; ++rank) cluster.bring(rank, "after");
  cluster.started(4, 2);
  for (const std::vector<std::string>& each : cluster.started(1)) CHECK(each.back() == "after");
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(names_start_in_one_order_whatever_the_order_of_calls);
  RUN(a_name_that_is_brought_again_is_the_next_operation_of_that_name);
  RUN(one_rank_starts_its_names_at_once);
  RUN(names_start_without_a_rank_that_has_joined_until_all_have);
  RUN(ranks_that_lack_a_name_are_logged_and_may_bring_it_later);
  RUN(a_first_rank_that_uses_no_names_is_logged);
  RUN(a_name_that_a_rank_never_brings_ends_the_job_at_the_timeout);
  RUN(a_first_rank_whose_engine_is_shut_down_tells_no_late_names);
}
