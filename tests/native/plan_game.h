// SPDX-License-Identifier: Apache-2.0
// Runs the plans of all ranks in memory.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "check.h"
#include "collectives/plan.h"

namespace smdist::testing {

using Bytes = std::vector<uint8_t>;
using Buffers = std::vector<Bytes>;

struct Player {
  Plan plan;
  Buffers inputs;
  Buffers outputs;
  Bytes scratch;
  std::vector<bool> is_done;
  bool is_in_place = false;
};

// Runs plans step by step, in random order, as far as messages and credits allow. Sums are sums
// of bytes; with `widening` 2, partial sums take two bytes each, the low one first.
//
// Thread safety: none.
class Game final {
 public:
  Game(std::vector<Player> players, uint32_t seed, size_t widening)
      : players_(std::move(players)), random_(seed), widening_(widening) {
    for (Player& player : players_) {
      player.is_done.assign(player.plan.steps.size(), false);
      player.scratch.assign(player.plan.scratch_bytes, 0xee);
    }
  }

  // Returns the ranks as they are when all have completed their plans. With `absent`, that rank
  // does not take part: the ranks as they are when none can go on.
  std::vector<Player> play(int absent = -1) {
    absent_ = absent;
    std::vector<std::pair<int, uint32_t>> open;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == absent) continue;
      for (uint32_t i = 0; i < players_[index(rank)].plan.steps.size(); ++i) {
        open.push_back({rank, i});
      }
    }
    while (!open.empty()) {
      const size_t before = open.size();
      const size_t granted_before = granted_.size();
      std::shuffle(open.begin(), open.end(), random_);
      for (auto it = open.begin(); it != open.end();) {
        it = try_step(it->first, it->second) ? open.erase(it) : it + 1;
      }
      const bool has_progress = open.size() < before || granted_.size() > granted_before;
      if (!has_progress && absent >= 0) return std::move(players_);
      CHECK(has_progress);  // else the plans are in a deadlock
    }
    CHECK(messages_.empty());  // every message was received
    CHECK(grants_.empty());
    return std::move(players_);
  }

 private:
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  int size() const { return static_cast<int>(players_.size()); }

  uint8_t* at(Player& player, const Region& region) {
    Bytes* buffer = &player.scratch;
    if (region.buffer == BufferKind::kInput) buffer = &player.inputs.at(region.index);
    if (region.buffer == BufferKind::kOutput) {
      buffer = &(player.is_in_place ? player.inputs : player.outputs).at(region.index);
    }
    CHECK(region.offset + region.bytes <= buffer->size());
    return buffer->data() + region.offset;
  }

  bool try_step(int rank, uint32_t number) {
    Player& player = players_[index(rank)];
    const Step& step = player.plan.steps[number];
    for (const uint32_t earlier : step.after) {
      CHECK(earlier != number);
      if (!player.is_done[earlier]) return false;
    }
    const bool did = step.kind == StepKind::kReceive ? receive(rank, step) : work(rank, step);
    player.is_done[number] = did;
    return did;
  }

  bool receive(int rank, const Step& step) {
    const Envelope envelope{step.peer, rank, step.tag};
    if (!step.after.empty() && granted_.insert(envelope).second) grants_.insert(envelope);
    const auto found = messages_.find(envelope);
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
      if (step.peer == absent_) return false;
      const Envelope envelope{rank, step.peer, step.tag};
      if (step.awaits_credit && grants_.erase(envelope) == 0) return false;
      Bytes message(from, from + step.sources[0].bytes);
      CHECK(messages_.insert({envelope, message}).second);
      return true;
    }
    if (step.kind == StepKind::kReduce) {
      sum(player, step);
    } else {
      const Bytes copy(from, from + step.target.bytes);
      std::copy(copy.begin(), copy.end(), at(player, step.target));
    }
    return true;
  }

  void sum(Player& player, const Step& step) {
    const size_t source_width = step.stage == ReduceStage::kFinal ? widening_ : 1;
    const size_t target_width = step.stage == ReduceStage::kPartial ? widening_ : 1;
    if (step.stage == ReduceStage::kWhole) CHECK_EQ(players_.size(), step.sources.size());
    Bytes result(step.target.bytes, 0);
    for (const Region& region : step.sources) {
      CHECK_EQ(step.target.bytes * source_width, region.bytes * target_width);
      const uint8_t* source = at(player, region);
      for (size_t i = 0; i < result.size() / target_width; ++i) {
        uint8_t& total = result[i * target_width];
        total = static_cast<uint8_t>(total + source[i * source_width]);
      }
    }
    std::copy(result.begin(), result.end(), at(player, step.target));
  }

  using Envelope = std::tuple<int, int, uint32_t>;  // from, to, tag

  std::vector<Player> players_;
  std::minstd_rand random_;
  const size_t widening_;
  int absent_ = -1;
  std::map<Envelope, Bytes> messages_;
  std::set<Envelope> grants_;   // sent and not yet used
  std::set<Envelope> granted_;  // all that were ever sent
};

// Returns the input of rank `rank` at byte i.
inline uint8_t value(int rank, size_t i) {
  return static_cast<uint8_t>(static_cast<size_t>(rank) * 37 + i * 11 + (i >> 8));
}

inline Bytes contribution(int rank, size_t bytes) {
  Bytes data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = value(rank, i);
  return data;
}

inline Bytes sum_of_all(int size, size_t bytes) {
  Bytes sum(bytes, 0);
  for (int rank = 0; rank < size; ++rank) {
    for (size_t i = 0; i < bytes; ++i) sum[i] = static_cast<uint8_t>(sum[i] + value(rank, i));
  }
  return sum;
}

inline Bytes part(const Bytes& whole, size_t number, size_t bytes) {
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(number * bytes);
  return Bytes(begin, begin + static_cast<std::ptrdiff_t>(bytes));
}

inline Buffers parts(const Bytes& whole, size_t count) {
  Buffers all;
  for (size_t i = 0; i < count; ++i) all.push_back(part(whole, i, whole.size() / count));
  return all;
}

using MakePlayer = std::function<Player(int rank)>;

inline std::vector<Player> play(int size, const MakePlayer& make, size_t widening = 1) {
  std::vector<Player> players;
  for (int rank = 0; rank < size; ++rank) players.push_back(make(rank));
  return Game(std::move(players), static_cast<uint32_t>(size), widening).play();
}

}  // namespace smdist::testing
