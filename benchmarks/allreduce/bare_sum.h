// SPDX-License-Identifier: Apache-2.0
// What bare_hosts.cc knows of an all-reduce that is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bare {

enum Kind { kShares = 0, kSums = 1 };

struct Range {
  size_t at = 0;
  size_t bytes = 0;
};

// One of several equal ranges of whole floats.
inline Range cut(const Range& whole, size_t number, size_t pieces) {
  const size_t floats = whole.bytes / sizeof(float);
  const size_t begin = floats * number / pieces;
  const size_t end = floats * (number + 1) / pieces;
  return {whole.at + begin * sizeof(float), (end - begin) * sizeof(float)};
}

inline void add(std::byte* total, const std::byte* more, size_t bytes) {
  auto* to = reinterpret_cast<float*>(total);
  const auto* from = reinterpret_cast<const float*>(more);
  for (size_t i = 0; i < bytes / sizeof(float); ++i) to[i] += from[i];
}

// What one all-reduce has exchanged with one other host, in bytes, by kind.
struct Exchange {
  size_t sent[2] = {0, 0};
  size_t got[2] = {0, 0};
  std::vector<std::byte> share;
};

struct Sum {
  std::byte* data = nullptr;
  Range whole{};
  Range part{};         // of our seat
  uint64_t number = 0;  // of all there have been
  int64_t token = 0;
  bool is_combined = false;  // our part, over the ranks of this host
  bool is_returned = false;  // our part is complete, and the neighbours have it
  size_t summed = 0;         // bytes of our shard
  uint64_t results = 0;      // a bit for each neighbour's part that is in place
  std::vector<Exchange> with;
};

// Of a rank: its host of so many, and its seat among the ranks there.
struct Place {
  size_t host, hosts, seat, seats;
};

}  // namespace bare
