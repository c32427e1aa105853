// SPDX-License-Identifier: Apache-2.0
// Runs the plans of all ranks of every small world in memory.
#include "collectives/collectives.h"

#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "check.h"
#include "collectives/owner_rotation.h"
#include "plan_game.h"

namespace smdist {
namespace {

using testing::Buffers;
using testing::Bytes;
using testing::contribution;
using testing::part;
using testing::parts;
using testing::play;
using testing::Player;
using testing::sum_of_all;

constexpr int kLargestWorld = 8;
constexpr int kLargestLayout = 6;  // ranks, over several hosts
const size_t kLengths[] = {0, 1, 3, 8, 64, 65, 700, 4099, 70'001};

void for_small_worlds(const std::function<void(int size, size_t bytes)>& visit) {
  for (int size = 1; size <= kLargestWorld; ++size) {
    for (const size_t bytes : kLengths) visit(size, bytes);
  }
}

// Returns placements: all on one host, pairs, a big host and a small one, and a random one.
std::vector<HostTopology> layouts_of(int size) {
  std::vector<int> pairs;
  std::vector<int> uneven;
  std::vector<int> random;
  std::minstd_rand dice(static_cast<uint32_t>(size) * 7);
  for (int rank = 0; rank < size; ++rank) {
    pairs.push_back(rank / 2);
    uneven.push_back(rank == 1);
    random.push_back(static_cast<int>(dice() % 3));
  }
  if (size > kLargestLayout) return {HostTopology(size)};
  return {HostTopology(size), HostTopology(pairs), HostTopology(uneven), HostTopology(random)};
}

void for_small_layouts(const std::function<void(const HostTopology& hosts, size_t bytes)>& visit) {
  for_small_worlds([&](int size, size_t bytes) {
    for (const HostTopology& hosts : layouts_of(size)) visit(hosts, bytes);
  });
}

Segmentation segmentation_of(size_t chunk_bytes, uint32_t window = 2, size_t widening = 2) {
  return {chunk_bytes, window, widening};
}

void shards_cover_the_buffer() {
  const std::vector<Weights> all = {{1}, {1, 1}, {1, 2, 3}, {0, 1}, {5, 0, 5, 0}, {1, 1000000, 1}};
  for (const Weights& weights : all) {
    for (const size_t bytes : kLengths) {
      const std::vector<size_t> boundaries = shard_boundaries(bytes, weights);
      const size_t total = std::accumulate(weights.begin(), weights.end(), size_t{0});
      CHECK_EQ(weights.size() + 1, boundaries.size());
      CHECK_EQ(0u, boundaries.front());
      CHECK_EQ(bytes, boundaries.back());
      for (size_t i = 0; i < weights.size(); ++i) {
        CHECK(boundaries[i] <= boundaries[i + 1]);
        CHECK(boundaries[i] == bytes || boundaries[i] % kShardAlignment == 0);
        const size_t fair = bytes * weights[i] / total;
        CHECK(boundaries[i + 1] - boundaries[i] <= fair + kShardAlignment);
        if (weights[i] == 0) CHECK_EQ(boundaries[i], boundaries[i + 1]);
      }
    }
  }
  // The product of these lengths and weights does not fit in 64 bits.
  CHECK_EQ(size_t{1} << 61, shard_boundaries(size_t{1} << 62, {1u << 31, 1u << 31})[1]);
}

void all_reduce_gives_all_ranks_the_sum() {
  for_small_layouts([](const HostTopology& hosts, size_t bytes) {
    const int size = hosts.size();
    for (const bool is_in_place : {false, true}) {
      const Segmentation segmentation =
          segmentation_of(bytes < 5000 ? 128 : 4096, is_in_place ? 1 : 4, is_in_place ? 2 : 1);
      Weights weights = equal_weights(size);
      if (is_in_place) std::iota(weights.begin(), weights.end(), 1);
      const auto make = [&](int rank) {
        return Player{all_reduce(rank, hosts, bytes, weights, segmentation),
                      {contribution(rank, bytes)},
                      {Bytes(bytes)},
                      {},
                      {},
                      is_in_place};
      };
      for (const Player& player : play(size, make, segmentation.widening)) {
        CHECK((is_in_place ? player.inputs : player.outputs)[0] == sum_of_all(size, bytes));
      }
    }
  });
}

void one_shot_all_reduce_gives_all_ranks_the_sum() {
  for_small_layouts([](const HostTopology& hosts, size_t bytes) {
    if (bytes == 0) return;
    for (const bool is_in_place : {false, true}) {
      const size_t widening = is_in_place ? 2 : 1;
      const auto make = [&](int rank) {
        return Player{one_shot_all_reduce(rank, hosts, bytes, widening),
                      {contribution(rank, bytes)},
                      {Bytes(bytes)},
                      {},
                      {},
                      is_in_place};
      };
      for (const Player& player : play(hosts.size(), make, widening)) {
        CHECK((is_in_place ? player.inputs : player.outputs)[0] == sum_of_all(hosts.size(), bytes));
      }
    }
  });
}

// Every rank owns its fair share of buffers and at most three more, at any time.
void owners_take_turns_by_weight() {
  for (const Weights& weights : {Weights{1, 1, 1}, Weights{1, 2, 0, 5}, Weights{0, 7}}) {
    const auto sum = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
    for (const uint64_t first : {uint64_t{0}, uint64_t{12'345}}) {
      std::vector<uint64_t> owned(weights.size());
      for (uint64_t i = 0; i < 2000; ++i) {
        ++owned[static_cast<size_t>(owner_of(first + i, weights))];
        for (size_t rank = 0; rank < weights.size(); ++rank) {
          CHECK(owned[rank] <= (i + 1) * weights[rank] / sum + 3);
          CHECK(owned[rank] + 3 >= (i + 1) * weights[rank] / sum);
        }
      }
    }
  }
}

// A program that repeats as many calls as there are ranks gives each its longest buffer in turn.
void no_rank_owns_the_same_call_of_every_step() {
  constexpr int kSize = 4;
  const Weights weights(kSize, 1);
  std::vector<uint64_t> owned(kSize);
  for (uint64_t step = 0; step < 64 * kSize; ++step) {
    ++owned[static_cast<size_t>(owner_of(step * kSize, weights))];
  }
  for (const uint64_t each : owned) CHECK_EQ(uint64_t{64}, each);
}

void reduce_gives_the_root_the_sum() {
  for_small_layouts([](const HostTopology& hosts, size_t bytes) {
    const int size = hosts.size();
    for (const bool is_in_place : {false, true}) {
      const int root = size / 2;
      const Segmentation segmentation = segmentation_of(1024);
      const auto make = [&](int rank) {
        const bool is_root = rank == root;
        return Player{reduce_to_root(rank, hosts, root, bytes, segmentation),
                      {contribution(rank, bytes)},
                      is_root ? Buffers{Bytes(bytes)} : Buffers{},
                      {},
                      {},
                      is_in_place && is_root};
      };
      const auto players = play(size, make, segmentation.widening);
      const Player& winner = players[static_cast<size_t>(root)];
      CHECK((is_in_place ? winner.inputs : winner.outputs)[0] == sum_of_all(size, bytes));
      for (int rank = 0; rank < size; ++rank) {  // inputs are not written
        if (rank != root)
          CHECK(players[static_cast<size_t>(rank)].inputs[0] == contribution(rank, bytes));
      }
    }
  });
}

void reduce_scatter_gives_each_rank_its_part() {
  for_small_layouts([](const HostTopology& hosts, size_t bytes) {
    const int size = hosts.size();
    const auto count = static_cast<size_t>(size);
    const Segmentation segmentation = segmentation_of(1024);
    for (const BufferLayout layout : {BufferLayout::kOneBuffer, BufferLayout::kBufferPerRank}) {
      const auto make = [&](int rank) {
        const Bytes all = contribution(rank, bytes * count);
        return Player{reduce_scatter(rank, hosts, bytes, layout, segmentation),
                      layout == BufferLayout::kOneBuffer ? Buffers{all} : parts(all, count),
                      {Bytes(bytes)},
                      {},
                      {},
                      false};
      };
      const auto players = play(size, make, segmentation.widening);
      const Bytes sum = sum_of_all(size, bytes * count);
      for (size_t i = 0; i < count; ++i) CHECK(players[i].outputs[0] == part(sum, i, bytes));
    }
  });
}

// For any length of the buffer: a window of chunks from every other rank, as an owner and as a
// host leader, and partial sums.
void scratch_memory_is_bounded_by_the_window() {
  const Segmentation segmentation = segmentation_of(1 << 10, 4, 2);
  for (int size = 2; size <= kLargestWorld; ++size) {
    for (const HostTopology& hosts : layouts_of(size)) {
      for (int rank = 0; rank < size; ++rank) {
        const size_t small =
            all_reduce(rank, hosts, 1 << 20, equal_weights(size), segmentation).scratch_bytes;
        const size_t large =
            all_reduce(rank, hosts, 1 << 22, equal_weights(size), segmentation).scratch_bytes;
        const size_t owners = hosts.count() == 1 ? 1 : static_cast<size_t>(size);
        CHECK_EQ(small, large);
        CHECK(large <= owners * static_cast<size_t>(size) * segmentation.window *
                           segmentation.chunk_bytes * 2);
      }
    }
  }
}

// Each host sends as many bytes as it would with a single rank.
void hosts_combine_before_the_wire() {
  constexpr size_t kBytes = 64 * 1024;
  const HostTopology hosts(std::vector<int>{0, 0, 0, 1, 1, 1});
  std::map<int, size_t> sent;
  for (int rank = 0; rank < hosts.size(); ++rank) {
    const Plan plan =
        all_reduce(rank, hosts, kBytes * 6, equal_weights(6), segmentation_of(1 << 20, 4, 1));
    for (const Step& step : plan.steps) {
      const bool crosses_hosts = step.kind == StepKind::kSend && !hosts.same_host(rank, step.peer);
      if (crosses_hosts) sent[hosts.host_of(rank)] += step.sources[0].bytes;
    }
  }
  CHECK_EQ(kBytes * 6, sent[0]);  // 2 S (H-1)/H with H = 2
  CHECK_EQ(kBytes * 6, sent[1]);
}

void all_gather_and_gather_collect_all_parts() {
  for_small_layouts([](const HostTopology& hosts, size_t bytes) {
    const int size = hosts.size();
    const auto count = static_cast<size_t>(size);
    const int root = size - 1;
    Buffers expected;
    for (int rank = 0; rank < size; ++rank) expected.push_back(contribution(rank, bytes));
    const Buffers room(count, Bytes(bytes));
    for (const bool to_all : {true, false}) {
      const auto players = play(size, [&](int rank) {
        return Player{to_all ? all_gather(rank, hosts, bytes, BufferLayout::kBufferPerRank)
                             : gather(rank, size, root, bytes, BufferLayout::kBufferPerRank),
                      {contribution(rank, bytes)},
                      room,
                      {},
                      {},
                      false};
      });
      for (int rank = 0; rank < size; ++rank) {
        const Buffers& result = players[static_cast<size_t>(rank)].outputs;
        CHECK(result == (to_all || rank == root ? expected : room));
      }
    }
    const auto flat = play(size, [&](int rank) {
      return Player{all_gather(rank, hosts, bytes, BufferLayout::kOneBuffer),
                    {contribution(rank, bytes)},
                    {Bytes(bytes * count)},
                    {},
                    {},
                    false};
    });
    for (const Player& player : flat) CHECK(parts(player.outputs[0], count) == expected);
  });
}

void broadcast_and_scatter_start_at_the_root() {
  for_small_layouts([](const HostTopology& hosts, size_t bytes) {
    const int size = hosts.size();
    const auto count = static_cast<size_t>(size);
    for (int root = 0; root < size; ++root) {
      const auto copies = play(size, [&](int rank) {
        return Player{broadcast(rank, hosts, root, bytes, 4096),
                      rank == root ? Buffers{contribution(root, bytes)} : Buffers{},
                      {Bytes(bytes)},
                      {},
                      {},
                      false};
      });
      const auto parts = play(size, [&](int rank) {
        return Player{scatter(rank, size, root, bytes, BufferLayout::kOneBuffer),
                      rank == root ? Buffers{contribution(root, bytes * count)} : Buffers{},
                      {Bytes(bytes)},
                      {},
                      {},
                      false};
      });
      for (int rank = 0; rank < size; ++rank) {
        const auto i = static_cast<size_t>(rank);
        if (rank != root) CHECK(copies[i].outputs[0] == contribution(root, bytes));
        CHECK(parts[i].outputs[0] == part(contribution(root, bytes * count), i, bytes));
      }
    }
  });
}

// Returns the bytes that rank a sends to rank b; 0 for some pairs.
size_t split(int a, int b) { return static_cast<size_t>((a * 5 + b * 3) % 4) * 9; }

void all_to_all_transposes() {
  for (int size = 1; size <= kLargestWorld; ++size) {
    const auto players = play(size, [&](int rank) {
      std::vector<Region> to;
      std::vector<Region> from;
      Player player;
      for (int peer = 0; peer < size; ++peer) {
        const auto i = static_cast<uint32_t>(peer);
        to.push_back({BufferKind::kInput, i, 0, split(rank, peer)});
        from.push_back({BufferKind::kOutput, i, 0, split(peer, rank)});
        player.inputs.push_back(contribution(rank * 8 + peer, split(rank, peer)));
        player.outputs.push_back(Bytes(split(peer, rank)));
      }
      player.plan = all_to_all(rank, size, to, from);
      return player;
    });
    for (int rank = 0; rank < size; ++rank) {
      for (int peer = 0; peer < size; ++peer) {
        const Bytes& got = players[static_cast<size_t>(rank)].outputs[static_cast<size_t>(peer)];
        CHECK(got == contribution(peer * 8 + rank, split(peer, rank)));
      }
    }
  }
}

void barrier_waits_for_every_rank() {
  for (int size = 1; size <= kLargestWorld; ++size) {
    const auto players =
        play(size, [&](int rank) { return Player{barrier(rank, size), {}, {}, {}, {}, false}; });
    for (const Player& player : players) {
      CHECK_EQ(2 * (static_cast<size_t>(size) - 1), player.plan.steps.size());
    }
  }
}

// In each step of the rotation, every rank receives from exactly one other.
void peers_are_served_in_rotated_order() {
  constexpr int kSize = 5;
  std::vector<std::vector<int>> order(kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    for (const Step& step :
         all_gather(rank, HostTopology(kSize), 8, BufferLayout::kOneBuffer).steps) {
      if (step.kind == StepKind::kSend) order[static_cast<size_t>(rank)].push_back(step.peer);
    }
  }
  for (size_t turn = 0; turn + 1 < kSize; ++turn) {
    std::vector<int> targets(kSize, 0);
    for (const std::vector<int>& each : order) ++targets[static_cast<size_t>(each[turn])];
    for (const int count : targets) CHECK_EQ(1, count);
  }
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(shards_cover_the_buffer);
  RUN(all_reduce_gives_all_ranks_the_sum);
  RUN(one_shot_all_reduce_gives_all_ranks_the_sum);
  RUN(owners_take_turns_by_weight);
  RUN(no_rank_owns_the_same_call_of_every_step);
  RUN(reduce_gives_the_root_the_sum);
  RUN(reduce_scatter_gives_each_rank_its_part);
  RUN(scratch_memory_is_bounded_by_the_window);
  RUN(hosts_combine_before_the_wire);
  RUN(all_gather_and_gather_collect_all_parts);
  RUN(broadcast_and_scatter_start_at_the_root);
  RUN(all_to_all_transposes);
  RUN(barrier_waits_for_every_rank);
  RUN(peers_are_served_in_rotated_order);
}
