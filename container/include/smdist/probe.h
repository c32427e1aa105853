// SPDX-License-Identifier: Apache-2.0
// Measures, at the start of a job, which tuning suits its ranks and its network.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "smdist/engine.h"
#include "smdist/tuning.h"

namespace smdist {

// Settings that the user has chosen, so that they are not measured.
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
  double seconds = 0;    // time that the probe took
  double latency = 0;    // seconds of an all_reduce of 8 bytes
  double bandwidth = 0;  // bus bandwidth of long all_reduces, bytes per second per host
};

// The ranks of the job, and which of them this one is.
struct World {
  int rank = 0;
  int size = 1;
  std::vector<int> hosts;  // by rank, as in Options
};

// Tune the engine by the fixed settings and, for the others, by timing all_reduces of all ranks.
// Takes some tenths of a second on one host, up to some seconds on many, and no time if everything
// is fixed. All ranks must call it at the same time, with the same `fixed`, after join(). All get
// the same findings, since each time that counts is the one of the slowest rank.
//
// Throws the error of a failed all_reduce, such as TimeoutError after `patience`.
Findings probe(Engine& engine, const World& world, const Fixed& fixed,
               std::chrono::milliseconds patience);

}  // namespace smdist
