// SPDX-License-Identifier: Apache-2.0
// State of an all-reduce in flight, for bare_hosts.cc.
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

// Returns one of several ranges of whole floats, of nearly equal length.
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

// Bytes that one all-reduce has exchanged with one other host, by kind.
struct HostTransfer {
  size_t sent[2] = {0, 0};
  size_t got[2] = {0, 0};
  std::vector<std::byte> share;
};

struct Sum {
  std::byte* data = nullptr;
  Range whole{};
  Range part{};         // part of this rank
  uint64_t number = 0;  // counts all sums
  int64_t token = 0;
  bool is_combined = false;  // this rank's part is added over the ranks of this host
  bool is_returned = false;  // this rank's part is complete and shared with this host
  size_t summed = 0;         // bytes of this rank's shard that are summed
  uint64_t results = 0;      // one bit for each finished part of the other ranks of this host
  std::vector<HostTransfer> with;
};

// Location of a rank: its host, the number of hosts, its index among the ranks of its host
// (seat), and their number.
struct Location {
  size_t host, hosts, seat, seats;
};

}  // namespace bare
