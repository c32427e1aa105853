// SPDX-License-Identifier: Apache-2.0
// Measurement, at the start of a job, of the tuning that is fastest on its hosts and network.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "smdist/engine.h"
#include "smdist/tuning.h"

namespace smdist {

// Settings of Tuning that the user has chosen. Those without a value are measured.
struct Fixed {
  std::optional<uint32_t> lanes;
  std::optional<size_t> chunk_bytes;
  std::optional<size_t> one_shot_bytes;
  std::optional<size_t> single_owner_bytes;
  std::optional<size_t> arriving_bytes;
  std::vector<uint32_t> shard_weights;  // by rank; empty: equal

  // Return whether the user has chosen all settings, so that there is nothing to measure.
  bool is_all() const {
    return lanes && chunk_bytes && one_shot_bytes && single_owner_bytes && arriving_bytes;
  }
};

// Results of a probe.
struct Findings {
  Tuning tuning;
  double seconds = 0;    // time that the probe took
  double latency = 0;    // duration of an all_reduce of 8 bytes in seconds
  double bandwidth = 0;  // bus bandwidth of long all_reduces in bytes per second, per host
};

// Ranks of the job, as one rank sees them.
struct World {
  int rank = 0;
  int size = 1;
  std::vector<int> hosts;  // number of the host of each rank, as in Options
};

// Tune the engine: use the fixed settings, and choose the others by timing all_reduces of all
// ranks. Takes some tenths of a second on one host, up to some seconds on many, and no time if all
// settings are fixed. All ranks must call it at the same time, with the same `fixed`, after join().
// All ranks return the same results, because every measured time is the maximum over the ranks.
//
// timeout: timeout of each all_reduce. Throws the error of an all_reduce that failed.
Findings probe(Engine& engine, const World& world, const Fixed& fixed,
               std::chrono::milliseconds timeout);

}  // namespace smdist
