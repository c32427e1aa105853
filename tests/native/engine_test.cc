// SPDX-License-Identifier: Apache-2.0
// Tests of whole engines, over memory and over TCP: their results, and their shutdown.
#include <dirent.h>

#include <algorithm>
#include <cstring>
#include <random>
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
using testing::sum_of;
using testing::text_of;
using Ints = std::vector<int32_t>;
using Spans = std::vector<Span>;

constexpr Network kNetworks[] = {Network::kMemory, Network::kShared, Network::kTcp,
                                 Network::kLocal};
constexpr int kLargestWorld = 5;

Operation make(Collective kind, int root = 0) {
  Operation operation;
  operation.kind = kind;
  operation.dtype = Dtype::kInt32;
  operation.root = root;
  return operation;
}

std::vector<Span> spans(std::vector<Ints>& all) {
  std::vector<Span> result;
  for (Ints& each : all) result.push_back(span(each));
  return result;
}

// Rank r contributes r * 1000 + i.
Ints values_of(int rank, size_t count) {
  Ints values(count);
  for (size_t i = 0; i < count; ++i) values[i] = rank * 1000 + static_cast<int32_t>(i);
  return values;
}

Ints sum_of_all(int size, size_t count) {
  Ints sum(count, 0);
  for (int rank = 0; rank < size; ++rank) {
    const Ints values = values_of(rank, count);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

Ints slice(const Ints& all, size_t number, size_t count) {
  Ints part;
  for (size_t i = 0; i < count; ++i) part.push_back(all[number * count + i]);
  return part;
}

void expect_success(std::vector<Result>& results) {
  for (Result& result : results) {
    const std::string error = text_of(result);
    if (!error.empty()) CHECK_CONTAINS("no error", error);
  }
}

// Buffers of all ranks. Runs one operation on all ranks and expects success.
struct Stage {
  Cluster& cluster;
  std::vector<std::vector<Ints>> inputs = std::vector<std::vector<Ints>>(count());
  std::vector<std::vector<Ints>> outputs = std::vector<std::vector<Ints>>(count());

  size_t count() const { return static_cast<size_t>(cluster.size()); }

  void run(const Operation& like) {
    std::vector<Result> results;
    for (int rank = 0; rank < cluster.size(); ++rank) {
      Operation operation = like;
      operation.inputs = spans(inputs[static_cast<size_t>(rank)]);
      operation.outputs = spans(outputs[static_cast<size_t>(rank)]);
      results.push_back(start(cluster[rank], 0, std::move(operation)));
    }
    expect_success(results);
  }
};

void for_all_worlds(const std::function<void(Cluster&, size_t count)>& visit) {
  for (const Network network : kNetworks) {
    for (int size = 1; size <= kLargestWorld; ++size) {
      Cluster cluster(size, network);
      for (const size_t count : {0, 1, 5, 1000, 50'001}) visit(cluster, count);
    }
  }
}

void all_reduce_sums_on_every_rank() {
  for_all_worlds([](Cluster& cluster, size_t count) {
    Stage stage{cluster};
    for (size_t i = 0; i < stage.count(); ++i) {
      stage.inputs[i] = {values_of(static_cast<int>(i), count)};
      stage.outputs[i] = {Ints(count)};
    }
    stage.run(make(Collective::kAllReduce));
    for (const auto& output : stage.outputs) CHECK(output[0] == sum_of_all(cluster.size(), count));
  });
}

void reduce_scatter_takes_one_buffer_or_many() {
  for_all_worlds([](Cluster& cluster, size_t count) {
    for (const bool has_list : {false, true}) {
      Stage stage{cluster};
      const size_t ranks = stage.count();
      for (size_t i = 0; i < ranks; ++i) {
        const Ints all = values_of(static_cast<int>(i), count * ranks);
        stage.inputs[i] = {all};
        if (has_list) {
          stage.inputs[i].clear();
          for (size_t j = 0; j < ranks; ++j) stage.inputs[i].push_back(slice(all, j, count));
        }
        stage.outputs[i] = {Ints(count)};
      }
      stage.run(make(Collective::kReduceScatter));
      const Ints sum = sum_of_all(cluster.size(), count * ranks);
      for (size_t i = 0; i < ranks; ++i) CHECK(stage.outputs[i][0] == slice(sum, i, count));
    }
  });
}

void gathers_and_broadcasts_move_the_right_bytes() {
  for_all_worlds([](Cluster& cluster, size_t count) {
    const int root = cluster.size() - 1;
    const size_t ranks = static_cast<size_t>(cluster.size());
    std::vector<Ints> all;
    for (size_t i = 0; i < ranks; ++i) all.push_back(values_of(static_cast<int>(i), count));

    Stage all_gather{cluster};
    Stage gather{cluster};
    Stage broadcast{cluster};
    Stage scatter{cluster};
    for (size_t i = 0; i < ranks; ++i) {
      const bool is_root = static_cast<int>(i) == root;
      all_gather.inputs[i] = gather.inputs[i] = broadcast.inputs[i] = {all[i]};
      all_gather.outputs[i] = std::vector<Ints>(ranks, Ints(count));
      if (is_root) gather.outputs[i] = std::vector<Ints>(ranks, Ints(count));
      if (is_root) scatter.inputs[i] = all;
      broadcast.outputs[i] = scatter.outputs[i] = {Ints(count)};
    }
    all_gather.run(make(Collective::kAllGather));
    gather.run(make(Collective::kGather, root));
    broadcast.run(make(Collective::kBroadcast, root));
    scatter.run(make(Collective::kScatter, root));
    for (size_t i = 0; i < ranks; ++i) {
      CHECK(all_gather.outputs[i] == all);
      CHECK(broadcast.outputs[i][0] == all[static_cast<size_t>(root)]);
      CHECK(scatter.outputs[i][0] == all[i]);
    }
    CHECK(gather.outputs[static_cast<size_t>(root)] == all);
  });
}

void reduce_and_all_to_all_and_barrier() {
  for_all_worlds([](Cluster& cluster, size_t count) {
    const int root = 0;
    Stage reduce{cluster};
    Stage splits{cluster};
    Stage equal{cluster};
    Stage barrier{cluster};
    const size_t ranks = reduce.count();
    for (size_t i = 0; i < ranks; ++i) {
      reduce.inputs[i] = {values_of(static_cast<int>(i), count)};
      if (static_cast<int>(i) == root) reduce.outputs[i] = {Ints(count)};
      for (size_t j = 0; j < ranks; ++j) {
        splits.inputs[i].push_back(values_of(static_cast<int>(i * 10 + j), (i + 2 * j) % 4));
        splits.outputs[i].push_back(Ints((j + 2 * i) % 4));
      }
      equal.inputs[i] = {values_of(static_cast<int>(i), count * ranks)};
      equal.outputs[i] = {Ints(count * ranks)};
    }
    reduce.run(make(Collective::kReduce, root));
    splits.run(make(Collective::kAllToAll));
    equal.run(make(Collective::kAllToAll));
    barrier.run(make(Collective::kBarrier));
    CHECK(reduce.outputs[0][0] == sum_of_all(cluster.size(), count));
    for (size_t i = 0; i < ranks; ++i) {
      for (size_t j = 0; j < ranks; ++j) {
        CHECK(splits.outputs[i][j] == splits.inputs[j][i]);
        CHECK(slice(equal.outputs[i][0], j, count) == slice(equal.inputs[j][0], i, count));
      }
    }
  });
}

// Many operations of two groups at once. Every rank starts those of one group in the same order,
// but interleaves the groups in its own way.
void groups_overlap_in_any_order() {
  for (const Network network : kNetworks) {
    constexpr int kSize = 4;
    constexpr size_t kOperations = 60;
    Cluster cluster(kSize, network);
    if (cluster.hub) cluster.hub->delay(std::chrono::microseconds(300), 9);
    for (const int rank : {3, 1}) cluster[rank].add_group(7, {3, 1});
    std::vector<std::vector<Ints>> data(kSize, std::vector<Ints>(2 * kOperations));
    std::vector<std::vector<Result>> results(kSize);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        const auto r = static_cast<size_t>(rank);
        std::minstd_rand random(static_cast<uint32_t>(rank));
        size_t next[2] = {0, rank % 2 == 1 ? size_t{0} : kOperations};
        while (next[0] < kOperations || next[1] < kOperations) {
          const size_t group =
              next[1] == kOperations || (next[0] < kOperations && random() % 2) ? 0 : 1;
          const size_t number = next[group]++;
          Ints& values = data[r][group * kOperations + number];
          values = values_of(rank, number % 7 == 0 ? 40'000 : 1 + number);
          Operation operation = make(Collective::kAllReduce);
          operation.inputs = operation.outputs = Spans{span(values)};
          results[r].push_back(start(cluster[rank], group == 0 ? 0 : 7, std::move(operation)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& each : results) expect_success(each);
    for (size_t number = 0; number < kOperations; ++number) {
      const size_t count = number % 7 == 0 ? 40'000 : 1 + number;
      Ints pair = values_of(1, count);
      for (size_t i = 0; i < count; ++i) pair[i] += 3000 + static_cast<int32_t>(i);
      for (const auto& rank : data) CHECK(rank[number] == sum_of_all(kSize, count));
      CHECK(data[1][kOperations + number] == pair);
      CHECK(data[3][kOperations + number] == pair);
    }
  }
}

// Messages arrive in different orders, and the bits are the same.
void sums_have_the_same_bits_in_every_run() {
  constexpr int kSize = 4;
  constexpr size_t kCount = 30'000;
  std::vector<float> first;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    const Network network = seed == 5 ? Network::kTcp : Network::kMemory;
    Cluster cluster(kSize, network,
                    [&](Options& options) { options.fragment_bytes = 1000 << seed; });
    if (cluster.hub) cluster.hub->delay(std::chrono::microseconds(2000), seed);
    std::minstd_rand random(1);
    std::vector<std::vector<float>> data(kSize, std::vector<float>(kCount));
    for (auto& rank : data) {
      for (float& value : rank) value = static_cast<float>(random()) * 1e-6f - 1000;
    }
    std::vector<Result> results;
    for (int rank = 0; rank < kSize; ++rank) {
      results.push_back(start(cluster[rank], 0, sum_of(data[static_cast<size_t>(rank)])));
    }
    expect_success(results);
    if (first.empty()) first = data[0];
    for (const auto& rank : data) CHECK(std::memcmp(rank.data(), first.data(), 4 * kCount) == 0);
  }
}

void premultiplied_and_averaged_halves() {
  Cluster cluster(3);
  std::vector<std::vector<uint16_t>> data(3, std::vector<uint16_t>(10, 0x3c00));  // 1.0
  std::vector<Result> results;
  for (int rank = 0; rank < 3; ++rank) {
    Operation operation = make(Collective::kAllReduce);
    operation.dtype = Dtype::kFloat16;
    operation.op = ReduceOp::kAverage;
    operation.scale = 4;
    operation.inputs = operation.outputs = Spans{span(data[static_cast<size_t>(rank)])};
    results.push_back(start(cluster[rank], 0, std::move(operation)));
  }
  expect_success(results);
  for (const auto& rank : data) CHECK_EQ(0x4400, rank[9]);  // 4.0
}

std::string refusal(Engine& engine, Operation operation) {
  try {
    operation.done = [](std::exception_ptr) {};
    engine.submit(0, std::move(operation));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

void wrong_calls_are_refused_at_once() {
  Cluster cluster(2);
  std::vector<float> values(10);
  Operation operation = sum_of(values);
  CHECK_CONTAINS("the timeout is 0 ms", refusal(cluster[0], operation));
  operation.timeout = std::chrono::seconds(1);
  operation.dtype = Dtype::kInt32;
  operation.op = ReduceOp::kAverage;
  CHECK_CONTAINS("the reduction average is not defined for the dtype int32",
                 refusal(cluster[0], operation));
  operation.op = ReduceOp::kSum;
  operation.outputs[0].bytes = 36;
  CHECK_CONTAINS("the input has 40 bytes, but the output has 36 bytes",
                 refusal(cluster[0], operation));
  operation.outputs = Spans{{values.data() + 1, 36}};
  operation.inputs = Spans{{values.data(), 36}};
  CHECK_CONTAINS("overlap", refusal(cluster[0], operation));
  operation.inputs[0].bytes = operation.outputs[0].bytes = 35;
  CHECK_CONTAINS("not a whole number of int32 elements", refusal(cluster[0], operation));
  operation = make(Collective::kBroadcast, 2);
  operation.timeout = std::chrono::seconds(1);
  CHECK_CONTAINS("the root is rank 2, but the group has only the ranks 0 to 1",
                 refusal(cluster[0], operation));
  operation = make(Collective::kAllToAll);
  operation.timeout = std::chrono::seconds(1);
  operation.inputs = Spans{{values.data(), 12}};
  CHECK_CONTAINS("cannot be split into 2 equal parts", refusal(cluster[0], operation));
}

std::string group_refusal(Engine& engine, uint32_t id, std::vector<int> members) {
  try {
    engine.add_group(id, std::move(members));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

void groups_continue_their_numbers_when_they_are_added_again() {
  Cluster cluster(2);
  CHECK_CONTAINS("other members", group_refusal(cluster[0], 0, {1, 0}));
  CHECK_CONTAINS("must be different ranks", group_refusal(cluster[0], 1, {0, 0}));
  CHECK_CONTAINS("not a member", group_refusal(cluster[0], 1, {1}));
  for (int i = 0; i < 3; ++i) {
    std::vector<Result> results;
    for (int rank : {0, 1}) results.push_back(start(cluster[rank], 0, make(Collective::kBarrier)));
    expect_success(results);
    for (int rank : {0, 1}) cluster[rank].remove_group(0);
    Operation late = make(Collective::kBarrier);
    late.timeout = std::chrono::seconds(1);
    CHECK_CONTAINS("group 0 does not exist", refusal(cluster[0], late));
    for (int rank : {0, 1}) cluster[rank].add_group(0, {0, 1});
  }
  Operation next = make(Collective::kBarrier);
  next.timeout = std::chrono::seconds(1);
  next.done = [](std::exception_ptr) {};
  CHECK_EQ(3u, cluster[0].submit(0, next));
}

size_t entries(const char* directory) {
  size_t count = 0;
  DIR* open = ::opendir(directory);
  while (::readdir(open) != nullptr) ++count;
  ::closedir(open);
  return count;
}

void engines_leak_no_descriptors_and_no_threads() {
  const size_t fds = entries("/proc/self/fd");
  const size_t threads = entries("/proc/self/task");
  for (int i = 0; i < 50; ++i) {
    Cluster cluster(2, i % 5 == 0 ? Network::kMemory : Network::kTcp);
    std::vector<float> a(100, 1);
    std::vector<float> b(100, 2);
    std::vector<Result> results;
    if (i % 3 != 0) results.push_back(start(cluster[0], 0, sum_of(a)));
    if (i % 3 != 0) results.push_back(start(cluster[1], 0, sum_of(b)));
    expect_success(results);
  }
  for (int i = 0; i < 10; ++i) Engine(Options{});  // never joined
  CHECK_EQ(fds, entries("/proc/self/fd"));
  CHECK_EQ(threads, entries("/proc/self/task"));
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(all_reduce_sums_on_every_rank);
  RUN(reduce_scatter_takes_one_buffer_or_many);
  RUN(gathers_and_broadcasts_move_the_right_bytes);
  RUN(reduce_and_all_to_all_and_barrier);
  RUN(groups_overlap_in_any_order);
  RUN(sums_have_the_same_bits_in_every_run);
  RUN(premultiplied_and_averaged_halves);
  RUN(wrong_calls_are_refused_at_once);
  RUN(groups_continue_their_numbers_when_they_are_added_again);
  RUN(engines_leak_no_descriptors_and_no_threads);
}
