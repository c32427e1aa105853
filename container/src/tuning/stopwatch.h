// SPDX-License-Identifier: Apache-2.0
// Times sums of all ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "smdist/ending.h"
#include "smdist/engine.h"

namespace smdist {

// All ranks must ask for the same times in the same order.
//
// Thread safety: none.
class Stopwatch final {
 public:
  // Sums go over this group of the engine, which nobody else may use.
  Stopwatch(Engine& engine, uint32_t group, std::chrono::milliseconds patience)
      : engine_(engine), group_(group), patience_(patience) {}

  // Seconds that `burst` sums of so many bytes take together: the least of several
  // tries of the slowest rank, so the same on all ranks. The first tries do not count.
  double time(const Tuning& tuning, size_t bytes, size_t burst = 1);

  // Seconds that all times took together; the same on all ranks.
  double total() const { return total_; }

 private:
  using Floats = std::vector<float>;

  double try_once(std::vector<Floats>& buffers);
  void sum(std::vector<Floats>& buffers);
  double agreed(double seconds);
  void run(std::vector<Operation> operations);
  void submit(std::vector<Operation> operations, Ending& ending);

  Engine& engine_;
  const uint32_t group_;
  const std::chrono::milliseconds patience_;
  double total_ = 0;
};

}  // namespace smdist
