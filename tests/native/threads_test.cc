// SPDX-License-Identifier: Apache-2.0
// One engine that several threads call at the same time.
#include <algorithm>
#include <atomic>
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

constexpr int kThreads = 4;
constexpr int kAtOnce = 20;

// Many fragments make an operation last long enough to overlap others.
class Sum final {
 public:
  explicit Sum(Engine& engine) : result_(start(engine, 0, sum_of(ones_))) {}

  bool is_told() const {
    return result_.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  }
  std::string error() { return text_of(result_); }
  bool is(float expected) const { return std::count(ones_.begin(), ones_.end(), expected) == 1024; }

 private:
  std::vector<float> ones_ = std::vector<float>(1024, 1);
  Result result_;
};
using Sums = std::vector<std::unique_ptr<Sum>>;

void in_small_fragments(Options& options) { options.fragment_bytes = 64; }

void run_at_once(const std::function<void()>& task, std::vector<std::thread>& threads) {
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(task);
}

void join_all(std::vector<std::thread>& threads) {
  for (std::thread& thread : threads) thread.join();
}

void sum_often(Engine& engine) {
  for (int round = 0; round < 20; ++round) {
    Sums sums;
    for (int i = 0; i < kAtOnce; ++i) sums.push_back(std::make_unique<Sum>(engine));
    for (const auto& sum : sums) {
      const std::string error = sum->error();
      if (!error.empty()) CHECK_CONTAINS("no error", error);
      CHECK(sum->is(2));
    }
  }
}

// All operations are equal, so that any two of them match.
void operations_of_many_threads_match() {
  Cluster cluster(2, Network::kMemory, in_small_fragments);
  std::vector<std::thread> threads;
  run_at_once([&] { sum_often(cluster[0]); }, threads);
  run_at_once([&] { sum_often(cluster[1]); }, threads);
  join_all(threads);
}

void sum_until_the_end(Engine& engine, std::atomic<int>& submitted) {
  Sums sums;
  try {
    for (; sums.size() < 10'000; ++submitted) sums.push_back(std::make_unique<Sum>(engine));
  } catch (const UsageError& error) {
    CHECK_CONTAINS("was shut down", error.what());
  }
  for (const auto& sum : sums) CHECK(sum->is_told());
}

// Every operation that submit() accepted ends, even at the very end of the engine.
void no_operation_is_lost_at_the_end() {
  for (int round = 0; round < 50; ++round) {
    Cluster cluster(2, Network::kMemory, in_small_fragments);
    std::atomic<int> submitted{0};
    std::vector<std::thread> threads;
    run_at_once([&] { sum_until_the_end(cluster[0], submitted); }, threads);
    while (submitted < kAtOnce) std::this_thread::yield();
    cluster[0].shutdown();
    join_all(threads);
  }
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(operations_of_many_threads_match);
  RUN(no_operation_is_lost_at_the_end);
}
