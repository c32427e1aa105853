// SPDX-License-Identifier: Apache-2.0
// How much of the time operations of each kind are under way.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "smdist/collective.h"

namespace smdist {

// Operations of one kind overlap: busy is the time in which at least one was under
// way, and not the sum of their times.
//
// Thread safety: all methods may be called from any thread. Times that threads took
// in another order than they call count as the latest that was told: no time counts
// twice.
class Activity final {
 public:
  using Clock = std::chrono::steady_clock;

  struct Total {
    uint64_t operations = 0;  // that have ended, in whatever way
    Clock::duration busy{};   // includes what is under way, until now
  };

  void begin(Collective kind, Clock::time_point now = Clock::now());
  void end(Collective kind, Clock::time_point now = Clock::now());  // once for each begin()
  Total total(Collective kind, Clock::time_point now = Clock::now());

 private:
  struct State {
    std::mutex mutex;
    uint64_t under_way = 0;    // guarded by mutex, as all below
    Clock::time_point latest;  // of the times that were told
    Total total;               // up to latest
  };

  State& at(Collective kind) { return states_[static_cast<size_t>(kind)]; }
  static void advance(State& state, Clock::time_point now);

  std::array<State, kCollectives> states_;
};

}  // namespace smdist
