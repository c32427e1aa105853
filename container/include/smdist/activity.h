// SPDX-License-Identifier: Apache-2.0
// Measures for how long operations of each kind are in flight.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "smdist/collective.h"

namespace smdist {

// Operations of one kind overlap. `busy` is the time in which at least one was in flight, not the
// sum of their times.
//
// Thread safety: all methods may be called from any thread. A time that is earlier than one of a
// previous call counts as equal to that one, so that no time counts twice.
class Activity final {
 public:
  using Clock = std::chrono::steady_clock;

  struct Total {
    uint64_t operations = 0;  // that have ended, with or without an error
    Clock::duration busy{};   // includes operations in flight, until now
  };

  void begin(Collective kind, Clock::time_point now = Clock::now());
  void end(Collective kind, Clock::time_point now = Clock::now());  // once for each begin()
  Total total(Collective kind, Clock::time_point now = Clock::now());

 private:
  struct State {
    std::mutex mutex;
    uint64_t in_flight = 0;    // guarded by mutex, like all below
    Clock::time_point latest;  // of the times passed in
    Total total;               // up to latest
  };

  State& at(Collective kind) { return states_[static_cast<size_t>(kind)]; }
  static void advance(State& state, Clock::time_point now);

  std::array<State, kCollectives> states_;
};

}  // namespace smdist
