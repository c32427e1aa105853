// SPDX-License-Identifier: Apache-2.0
// Measurement of the duration of all-reduces over all ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "smdist/completion.h"
#include "smdist/engine.h"

namespace smdist {

// Measures how long all-reduces take. All ranks must make the same calls in the same order.
//
// Thread safety: none.
class AllReduceTimer final {
 public:
  // group: number of a group of all ranks that is used only here. timeout: timeout of each
  // all-reduce.
  AllReduceTimer(Engine& engine, uint32_t group, std::chrono::milliseconds timeout)
      : engine_(engine), group_(group), timeout_(timeout) {}

  // Return the duration in seconds of `burst` concurrent sums of `bytes` bytes each: the minimum of
  // several tries, then the maximum over all ranks, so that the result is the same on all ranks.
  // Warm-up tries do not count.
  double time(const Tuning& tuning, size_t bytes, size_t burst = 1);

  // Return the seconds spent in all measurements so far; the same on all ranks.
  double total() const { return total_; }

 private:
  using Floats = std::vector<float>;

  double try_once(std::vector<Floats>& buffers);
  void sum(std::vector<Floats>& buffers);
  double agreed(double seconds);
  void run(std::vector<Operation> operations);
  void submit(std::vector<Operation> operations, Completion& completion);

  Engine& engine_;
  const uint32_t group_;
  const std::chrono::milliseconds timeout_;
  double total_ = 0;
};

}  // namespace smdist
