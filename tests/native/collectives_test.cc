// SPDX-License-Identifier: Apache-2.0
// The plans of all ranks of every small world, played in memory.
#include "collectives/collectives.h"

#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "check.h"

namespace smdist {
namespace {

using Bytes = std::vector<uint8_t>;
using Buffers = std::vector<Bytes>;

constexpr int kLargestWorld = 8;
const size_t kLengths[] = {0, 1, 3, 8, 64, 65, 700, 4099, 70'001};

struct Player {
  Plan plan;
  Buffers inputs;
  Buffers outputs;
  Bytes scratch;
  std::vector<bool> is_done;
  bool is_in_place = false;
};

// Plays plans step by step, in random order, as the messages allow. "Sums" are
// byte sums.
class Game final {
 public:
  Game(std::vector<Player> players, uint32_t seed) : players_(std::move(players)), random_(seed) {
    for (Player& player : players_) {
      player.is_done.assign(player.plan.steps.size(), false);
      player.scratch.assign(player.plan.scratch_bytes, 0xee);
    }
  }

  std::vector<Player> play() {
    std::vector<std::pair<int, uint32_t>> open;
    for (int rank = 0; rank < size(); ++rank) {
      for (uint32_t i = 0; i < players_[index(rank)].plan.steps.size(); ++i) {
        open.push_back({rank, i});
      }
    }
    while (!open.empty()) {
      const size_t before = open.size();
      std::shuffle(open.begin(), open.end(), random_);
      for (auto it = open.begin(); it != open.end();) {
        it = try_step(it->first, it->second) ? open.erase(it) : it + 1;
      }
      CHECK(open.size() < before);  // else the plans wait for each other for ever
    }
    CHECK(messages_.empty());  // nobody was sent what he did not want
    return std::move(players_);
  }

 private:
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  int size() const { return static_cast<int>(players_.size()); }

  uint8_t* at(Player& player, const Region& region) {
    Bytes* buffer = &player.scratch;
    if (region.room == Room::kInput) buffer = &player.inputs.at(region.index);
    if (region.room == Room::kOutput) {
      buffer = &(player.is_in_place ? player.inputs : player.outputs).at(region.index);
    }
    CHECK(region.offset + region.bytes <= buffer->size());
    return buffer->data() + region.offset;
  }

  bool try_step(int rank, uint32_t number) {
    Player& player = players_[index(rank)];
    const Step& step = player.plan.steps[number];
    for (const uint32_t earlier : step.after) {
      CHECK(earlier < number);
      if (!player.is_done[earlier]) return false;
    }
    const bool did = step.kind == StepKind::kReceive ? receive(rank, step) : work(rank, step);
    player.is_done[number] = did;
    return did;
  }

  bool receive(int rank, const Step& step) {
    CHECK(step.after.empty());
    const auto found = messages_.find({step.peer, rank, step.tag});
    if (found == messages_.end()) return false;
    CHECK_EQ(step.target.bytes, found->second.size());
    uint8_t* to = at(players_[index(rank)], step.target);
    std::copy(found->second.begin(), found->second.end(), to);
    messages_.erase(found);
    return true;
  }

  bool work(int rank, const Step& step) {
    Player& player = players_[index(rank)];
    const uint8_t* from = at(player, step.sources[0]);
    if (step.kind == StepKind::kSend) {
      CHECK(step.peer != rank);
      Bytes message(from, from + step.sources[0].bytes);
      CHECK(messages_.insert({{rank, step.peer, step.tag}, message}).second);
      return true;
    }
    Bytes result(from, from + step.target.bytes);
    for (size_t s = 1; s < step.sources.size(); ++s) {
      const uint8_t* source = at(player, step.sources[s]);
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] = static_cast<uint8_t>(result[i] + source[i]);
      }
    }
    if (step.kind == StepKind::kReduce) CHECK_EQ(players_.size(), step.sources.size());
    std::copy(result.begin(), result.end(), at(player, step.target));
    return true;
  }

  std::vector<Player> players_;
  std::minstd_rand random_;
  std::map<std::tuple<int, int, uint32_t>, Bytes> messages_;  // from, to, tag
};

// What rank `rank` has at byte i.
uint8_t value(int rank, size_t i) {
  return static_cast<uint8_t>(static_cast<size_t>(rank) * 37 + i * 11 + (i >> 8));
}

Bytes contribution(int rank, size_t bytes) {
  Bytes data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = value(rank, i);
  return data;
}

Bytes sum_of_all(int size, size_t bytes) {
  Bytes sum(bytes, 0);
  for (int rank = 0; rank < size; ++rank) {
    for (size_t i = 0; i < bytes; ++i) sum[i] = static_cast<uint8_t>(sum[i] + value(rank, i));
  }
  return sum;
}

Bytes part(const Bytes& whole, size_t number, size_t bytes) {
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(number * bytes);
  return Bytes(begin, begin + static_cast<std::ptrdiff_t>(bytes));
}

Buffers parts(const Bytes& whole, size_t count) {
  Buffers all;
  for (size_t i = 0; i < count; ++i) all.push_back(part(whole, i, whole.size() / count));
  return all;
}

using MakePlayer = std::function<Player(int rank)>;

std::vector<Player> play(int size, const MakePlayer& make) {
  std::vector<Player> players;
  for (int rank = 0; rank < size; ++rank) players.push_back(make(rank));
  return Game(std::move(players), static_cast<uint32_t>(size)).play();
}

void for_small_worlds(const std::function<void(int size, size_t bytes)>& visit) {
  for (int size = 1; size <= kLargestWorld; ++size) {
    for (const size_t bytes : kLengths) visit(size, bytes);
  }
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
  // Lengths whose product with a weight does not fit in 64 bits.
  CHECK_EQ(size_t{1} << 61, shard_boundaries(size_t{1} << 62, {1u << 31, 1u << 31})[1]);
}

void all_reduce_gives_all_ranks_the_sum() {
  for_small_worlds([](int size, size_t bytes) {
    for (const bool is_in_place : {false, true}) {
      for (const size_t piece_bytes : {bytes < 5000 ? size_t{128} : size_t{8192}, kPieceBytes}) {
        Weights weights = equal_weights(size);
        if (is_in_place) std::iota(weights.begin(), weights.end(), 1);
        const auto players = play(size, [&](int rank) {
          Player player{all_reduce(rank, size, bytes, weights, piece_bytes),
                        {contribution(rank, bytes)},
                        {Bytes(bytes)},
                        {},
                        {},
                        is_in_place};
          return player;
        });
        for (const Player& player : players) {
          CHECK((is_in_place ? player.inputs : player.outputs)[0] == sum_of_all(size, bytes));
        }
      }
    }
  });
}

void reduce_gives_the_root_the_sum() {
  for_small_worlds([](int size, size_t bytes) {
    for (const bool is_in_place : {false, true}) {
      const int root = size / 2;
      const auto players = play(size, [&](int rank) {
        const bool is_root = rank == root;
        return Player{reduce_to_root(rank, size, root, bytes, 1024),
                      {contribution(rank, bytes)},
                      is_root ? Buffers{Bytes(bytes)} : Buffers{},
                      {},
                      {},
                      is_in_place && is_root};
      });
      const Player& winner = players[static_cast<size_t>(root)];
      CHECK((is_in_place ? winner.inputs : winner.outputs)[0] == sum_of_all(size, bytes));
      for (int rank = 0; rank < size; ++rank) {  // inputs are not written
        if (rank != root)
          CHECK(players[static_cast<size_t>(rank)].inputs[0] == contribution(rank, bytes));
      }
    }
  });
}

void reduce_scatter_gives_each_rank_its_chunk() {
  for_small_worlds([](int size, size_t bytes) {
    const auto count = static_cast<size_t>(size);
    for (const Layout layout : {Layout::kOneBuffer, Layout::kBufferPerRank}) {
      const auto players = play(size, [&](int rank) {
        const Bytes all = contribution(rank, bytes * count);
        return Player{reduce_scatter(rank, size, bytes, layout, 1024),
                      layout == Layout::kOneBuffer ? Buffers{all} : parts(all, count),
                      {Bytes(bytes)},
                      {},
                      {},
                      false};
      });
      const Bytes sum = sum_of_all(size, bytes * count);
      for (size_t i = 0; i < count; ++i) CHECK(players[i].outputs[0] == part(sum, i, bytes));
    }
  });
}

void all_gather_and_gather_collect_all_chunks() {
  for_small_worlds([](int size, size_t bytes) {
    const auto count = static_cast<size_t>(size);
    const int root = size - 1;
    Buffers expected;
    for (int rank = 0; rank < size; ++rank) expected.push_back(contribution(rank, bytes));
    const Buffers room(count, Bytes(bytes));
    for (const bool to_all : {true, false}) {
      const auto players = play(size, [&](int rank) {
        return Player{to_all ? all_gather(rank, size, bytes, Layout::kBufferPerRank)
                             : gather(rank, size, root, bytes, Layout::kBufferPerRank),
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
      return Player{all_gather(rank, size, bytes, Layout::kOneBuffer),
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
  for_small_worlds([](int size, size_t bytes) {
    const auto count = static_cast<size_t>(size);
    for (int root = 0; root < size; ++root) {
      const auto copies = play(size, [&](int rank) {
        return Player{broadcast(rank, size, root, bytes, 4096),
                      rank == root ? Buffers{contribution(root, bytes)} : Buffers{},
                      {Bytes(bytes)},
                      {},
                      {},
                      false};
      });
      const auto chunks = play(size, [&](int rank) {
        return Player{scatter(rank, size, root, bytes, Layout::kOneBuffer),
                      rank == root ? Buffers{contribution(root, bytes * count)} : Buffers{},
                      {Bytes(bytes)},
                      {},
                      {},
                      false};
      });
      for (int rank = 0; rank < size; ++rank) {
        const auto i = static_cast<size_t>(rank);
        if (rank != root) CHECK(copies[i].outputs[0] == contribution(root, bytes));
        CHECK(chunks[i].outputs[0] == part(contribution(root, bytes * count), i, bytes));
      }
    }
  });
}

// What rank a sends to rank b, some of it nothing.
size_t split(int a, int b) { return static_cast<size_t>((a * 5 + b * 3) % 4) * 9; }

void all_to_all_transposes() {
  for (int size = 1; size <= kLargestWorld; ++size) {
    const auto players = play(size, [&](int rank) {
      std::vector<Region> to;
      std::vector<Region> from;
      Player player;
      for (int peer = 0; peer < size; ++peer) {
        const auto i = static_cast<uint32_t>(peer);
        to.push_back({Room::kInput, i, 0, split(rank, peer)});
        from.push_back({Room::kOutput, i, 0, split(peer, rank)});
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

void barrier_hears_of_everybody() {
  for (int size = 1; size <= kLargestWorld; ++size) {
    const auto players =
        play(size, [&](int rank) { return Player{barrier(rank, size), {}, {}, {}, {}, false}; });
    for (const Player& player : players) {
      CHECK_EQ(2 * (static_cast<size_t>(size) - 1), player.plan.steps.size());
    }
  }
}

// At any step of the rotation, every rank is sent to by exactly one other.
void peers_are_served_in_rotated_order() {
  constexpr int kSize = 5;
  std::vector<std::vector<int>> order(kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    for (const Step& step : all_gather(rank, kSize, 8, Layout::kOneBuffer).steps) {
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
  RUN(reduce_gives_the_root_the_sum);
  RUN(reduce_scatter_gives_each_rank_its_chunk);
  RUN(all_gather_and_gather_collect_all_chunks);
  RUN(broadcast_and_scatter_start_at_the_root);
  RUN(all_to_all_transposes);
  RUN(barrier_hears_of_everybody);
  RUN(peers_are_served_in_rotated_order);
}
