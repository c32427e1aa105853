// SPDX-License-Identifier: Apache-2.0
// Statistics of operations: how many of each kind have ended, and how long any was in flight.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "smdist/collective.h"

namespace smdist {

// Counts the operations of each kind, and measures the time during which at least one operation of
// that kind was in flight. Operations that overlap do not add up: the time counts once.
//
// Thread safety: all methods may be called from any thread. A `now` that is earlier than that of a
// previous call counts as equal to it, so that no time counts twice.
class Activity final {
 public:
  using Clock = std::chrono::steady_clock;

  // Statistics of one kind of operation.
  struct Total {
    uint64_t operations = 0;  // number of operations that have ended, with or without an error
    Clock::duration busy{};   // time during which at least one operation was in flight, until `now`
  };

  // Record that an operation of this kind has started.
  void begin(Collective kind, Clock::time_point now = Clock::now());
  // Record that an operation has ended. Call once for each begin().
  void end(Collective kind, Clock::time_point now = Clock::now());
  // Return the statistics of one kind.
  Total total(Collective kind, Clock::time_point now = Clock::now());

 private:
  struct KindState {
    std::mutex mutex;
    uint64_t in_flight = 0;    // guarded by mutex, like all below
    Clock::time_point latest;  // latest `now` of any call
    Total total;               // statistics up to `latest`
  };

  KindState& at(Collective kind) { return states_[static_cast<size_t>(kind)]; }
  static void advance(KindState& state, Clock::time_point now);

  std::array<KindState, kCollectives> states_;
};

}  // namespace smdist
