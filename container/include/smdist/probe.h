// SPDX-License-Identifier: Apache-2.0
// Finds out, at the start of a job, how its ranks and its network are used best.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "smdist/engine.h"
#include "smdist/tuning.h"

namespace smdist {

// What is not to be measured.
struct Fixed {
  std::optional<uint32_t> lanes;
  std::optional<size_t> piece_bytes;
  std::optional<size_t> one_shot_bytes;
  std::optional<size_t> single_owner_bytes;
  std::optional<size_t> arriving_bytes;
  std::vector<uint32_t> shard_weights;  // by rank; empty: equal

  bool is_all() const {
    return lanes && piece_bytes && one_shot_bytes && single_owner_bytes && arriving_bytes;
  }
};

struct Findings {
  Tuning tuning;
  double seconds = 0;    // that it took
  double latency = 0;    // seconds of a sum of 8 bytes
  double bandwidth = 0;  // bus bandwidth of long sums, bytes per second per host
};

// What one rank of the world is told.
struct World {
  int rank = 0;
  int size = 1;
  std::vector<int> hosts;  // by rank, as in Options
};

// Tunes the engine by what is fixed and, for the rest, by timing sums of all ranks.
// Takes some tenths of a second on one host, up to some seconds on many, or nothing where there
// is nothing to find out. All ranks must call it at the same time, with the same `fixed`, after
// join(); they end with the same findings, since a time counts as the slowest rank has measured it.
//
// Throws what ends an operation, such as TimeoutError after `patience`.
Findings probe(Engine& engine, const World& world, const Fixed& fixed,
               std::chrono::milliseconds patience);

}  // namespace smdist
