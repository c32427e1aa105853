// SPDX-License-Identifier: Apache-2.0
// Tests that the bits of a sum depend only on the placement of ranks on hosts.
#include <cstring>
#include <map>
#include <random>

#include "check.h"
#include "cluster.h"
#include "reduce/half_precision.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::Network;
using testing::Result;
using testing::span;
using testing::start;
using testing::text_of;

using Floats = std::vector<float>;
using Layout = std::vector<int>;  // the host of each rank

// Settings that may differ between two runs that must give the same bits.
struct Run {
  Network network = Network::kMemory;
  size_t fragment_bytes = 0;
  Tuning tuning;
  uint32_t window = 1;
  size_t block_bytes = 256 << 10;
  size_t eager_bytes = 16 << 10;
  uint32_t seed = 0;
};

Floats random_values(std::minstd_rand& random, size_t count) {
  Floats values(count);
  for (float& value : values) {
    value =
        std::ldexp(static_cast<float>(random() % 20001) - 10000, static_cast<int>(random() % 12));
  }
  return values;
}

// Hosts in the order of their lowest rank; the ranks of a host in rising order.
float sum_by_hosts(const Layout& layout, const std::vector<Floats>& data, size_t i) {
  std::vector<int> order;
  std::map<int, float> sums;
  for (size_t rank = 0; rank < layout.size(); ++rank) {
    const auto [at, is_first] = sums.insert({layout[rank], data[rank][i]});
    if (is_first) {
      order.push_back(layout[rank]);
    } else {
      at->second += data[rank][i];
    }
  }
  float total = sums[order[0]];
  for (size_t host = 1; host < order.size(); ++host) total += sums[order[host]];
  return total;
}

Floats expected_sum(const Layout& layout, const std::vector<Floats>& data) {
  Floats sum(data[0].size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum_by_hosts(layout, data, i);
  return sum;
}

Cluster cluster_for(const Layout& layout, const Run& run) {
  return Cluster(static_cast<int>(layout.size()), run.network, [&](Options& options) {
    options.hosts = layout;
    options.fragment_bytes = run.fragment_bytes;
    options.tuning = run.tuning;
    options.eager_bytes = options.shared_eager_bytes = run.eager_bytes;
    options.window = run.window;
    options.block_bytes = run.block_bytes;
  });
}

void expect_success(std::vector<Result>& results) {
  for (Result& result : results) {
    const std::string error = text_of(result);
    if (!error.empty()) CHECK_CONTAINS("no error", error);
  }
}

// The lengths are such that each algorithm of all_reduce is chosen for some of them.
Tuning random_tuning(std::minstd_rand& random, size_t size) {
  Tuning tuning;
  tuning.lanes = 1 + static_cast<uint32_t>(random() % 3);
  tuning.chunk_bytes = 64 * (1 + random() % 500);
  tuning.one_shot_bytes = random() % 2 * (random() % 50'000);
  tuning.single_owner_bytes = random() % 2 * (random() % 100'000);
  for (size_t rank = 0; random() % 2 == 0 && rank < size; ++rank) {
    tuning.shard_weights.resize(size, 1);
    tuning.shard_weights[rank] = static_cast<uint32_t>(random() % 3 + (rank == 0));
  }
  return tuning;
}

Run random_run(std::minstd_rand& random, size_t size) {
  Run run;
  const Network networks[] = {Network::kMemory, Network::kShared, Network::kLocal, Network::kTcp};
  run.network = networks[random() % 4];
  run.fragment_bytes = 1000 + random() % 30'000;
  run.tuning = random_tuning(random, size);
  run.eager_bytes = random() % 3 * (random() % 20'000);
  run.window = 1 + static_cast<uint32_t>(random() % 4);
  run.block_bytes = 64 * (100 + random() % 500);
  run.seed = static_cast<uint32_t>(random());
  return run;
}

Layout random_layout(std::minstd_rand& random) {
  Layout layout(2 + random() % 5);
  for (int& host : layout) host = static_cast<int>(random() % 4) * 7;
  return layout;
}

// All ranks hold the whole sum afterwards (all_reduce), the root does (reduce), or each holds its
// part (reduce_scatter).
void check_sums(Cluster& cluster, Collective kind, const std::vector<Floats>& data,
                const Floats& expected) {
  const size_t size = data.size();
  std::vector<Floats> inputs = data;
  std::vector<Floats> outputs(size, Floats(expected.size()));
  std::vector<Result> results;
  const bool is_scatter = kind == Collective::kReduceScatter;
  const size_t part = expected.size() / size;
  for (size_t rank = 0; rank < size; ++rank) {
    Operation operation;
    operation.kind = kind;
    operation.dtype = Dtype::kFloat32;
    operation.root = static_cast<int>(size) - 1;
    if (is_scatter) outputs[rank].resize(part);
    operation.inputs = {span(inputs[rank])};
    operation.outputs = {span(outputs[rank])};
    results.push_back(start(cluster[static_cast<int>(rank)], 0, std::move(operation)));
  }
  expect_success(results);
  for (size_t rank = 0; rank < size; ++rank) {
    if (kind == Collective::kReduce && rank + 1 < size) continue;
    const float* at = expected.data() + (is_scatter ? rank * part : 0);
    CHECK(std::memcmp(at, outputs[rank].data(), outputs[rank].size() * sizeof(float)) == 0);
  }
}

void tune_anew(Cluster& cluster, std::minstd_rand& random) {
  const Tuning tuning = random_tuning(random, static_cast<size_t>(cluster.size()));
  for (int rank = 0; rank < cluster.size(); ++rank) cluster[rank].tune(tuning);
}

void the_order_of_additions_follows_from_the_layout() {
  std::minstd_rand random(11);
  for (int i = 0; i < 80; ++i) {
    const Layout layout = random_layout(random);
    const size_t count = (1 + random() % 9000) * layout.size();
    std::vector<Floats> data;
    for (size_t rank = 0; rank < layout.size(); ++rank)
      data.push_back(random_values(random, count));
    const Floats expected = expected_sum(layout, data);
    for (int again = 0; again < 2; ++again) {
      const Run run = random_run(random, layout.size());
      Cluster cluster = cluster_for(layout, run);
      if (cluster.hub) cluster.hub->delay(std::chrono::microseconds(random() % 500), run.seed);
      check_sums(cluster, Collective::kAllReduce, data, expected);
      tune_anew(cluster, random);
      check_sums(cluster, Collective::kAllReduce, data, expected);
      check_sums(cluster, Collective::kReduce, data, expected);
      check_sums(cluster, Collective::kReduceScatter, data, expected);
    }
  }
}

Run run_of(Network network, Tuning tuning = {}) {
  tuning.chunk_bytes = 64;
  return {network, 4096, tuning};
}

// 2048 + 1 on one host and 1 on another: 2050 in float16, with one rounding.
void halves_are_rounded_once(const Tuning& tuning) {
  Cluster cluster = cluster_for({0, 0, 1}, run_of(Network::kMemory, tuning));
  const float values[] = {2048, 1, 1};
  std::vector<std::vector<Float16>> data;
  std::vector<Result> results;
  for (const float value : values) data.emplace_back(1000, to_float16(value));
  for (int rank = 0; rank < 3; ++rank) {
    Operation operation;
    operation.kind = Collective::kAllReduce;
    operation.dtype = Dtype::kFloat16;
    operation.inputs = operation.outputs = {span(data[static_cast<size_t>(rank)])};
    results.push_back(start(cluster[rank], 0, std::move(operation)));
  }
  expect_success(results);
  for (const auto& rank : data) {
    for (const Float16 value : rank) CHECK_EQ(2050.0f, to_float(value));
  }
}

void halves_are_rounded_once_over_hosts() {
  Tuning at_once, by_one;
  at_once.one_shot_bytes = 1 << 20;
  by_one.one_shot_bytes = 0;
  by_one.single_owner_bytes = 1 << 20;
  for (const Tuning& tuning : {Tuning{}, at_once, by_one}) halves_are_rounded_once(tuning);
}

// A group has a layout of its own: here every member is alone on its host.
void a_group_has_the_layout_of_its_members() {
  Cluster cluster = cluster_for({0, 0, 1, 1}, run_of(Network::kMemory));
  const std::vector<int> members = {3, 0};
  std::vector<float> data[2] = {Floats(500, 1), Floats(500, 2)};
  std::vector<Result> results;
  for (size_t i = 0; i < 2; ++i) {
    cluster[members[i]].add_group(5, members);
    results.push_back(start(cluster[members[i]], 5, testing::sum_of(data[i])));
  }
  expect_success(results);
  CHECK_EQ(3.0f, data[0][499]);
  CHECK_EQ(3.0f, data[1][0]);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(the_order_of_additions_follows_from_the_layout);
  RUN(halves_are_rounded_once_over_hosts);
  RUN(a_group_has_the_layout_of_its_members);
}
