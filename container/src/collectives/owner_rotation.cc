// SPDX-License-Identifier: Apache-2.0
#include "collectives/owner_rotation.h"

#include <algorithm>
#include <functional>

namespace smdist {
namespace {

// After so many rounds the rotation shifts by one rank: if a program repeats the same calls, no
// rank gets the longest buffer every time.
constexpr uint64_t kRoundsPerShift = 64;

// 2^64 divided by the golden ratio: its multiples modulo 2^64 are spread evenly.
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

}  // namespace

int owner_of(uint64_t turn, const Weights& weights) {
  const uint64_t size = weights.size();
  const bool are_equal =
      std::adjacent_find(weights.begin(), weights.end(), std::not_equal_to<>()) == weights.end();
  if (are_equal) return static_cast<int>((turn + turn / (kRoundsPerShift * size)) % size);
  uint64_t total = 0;
  for (const uint32_t weight : weights) total += weight;
  using Wide = unsigned __int128;
  uint64_t at = static_cast<uint64_t>(Wide{turn * kGolden} * total >> 64);  // below total
  int owner = 0;
  for (const uint32_t weight : weights) {
    if (at < weight) break;
    at -= weight;
    ++owner;
  }
  return owner;
}

}  // namespace smdist
