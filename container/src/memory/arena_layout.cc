// SPDX-License-Identifier: Apache-2.0
#include "memory/arena_layout.h"

namespace smdist {
namespace {

constexpr size_t kMostSharers = 16;  // their slots grow with the square of their number
constexpr size_t kExchanges = 3;     // one is in use, one is being left, one is being taken

std::vector<int> ranks_of_host(const Options& options) {
  std::vector<int> ranks;
  const auto host_of = [&](int rank) {
    return options.hosts.empty() ? 0 : options.hosts[static_cast<size_t>(rank)];
  };
  for (int rank = 0; rank < options.size; ++rank) {
    if (host_of(rank) == host_of(options.rank)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

ArenaLayout::ArenaLayout(const Options& options)
    : ranks(ranks_of_host(options)),
      blocks_bytes(options.block_bytes * options.blocks_per_peer * (ranks.size() - 1)),
      shape{ranks.size(), options.block_bytes, options.window},
      num_exchanges(ranks.size() > 1 && ranks.size() <= kMostSharers ? kExchanges : 0),
      bytes(blocks_bytes + num_exchanges * shape.bytes()) {}

Exchange ArenaLayout::exchange(const Span& arena, size_t number) const {
  auto* begin = static_cast<uint8_t*>(arena.data) + blocks_bytes;
  return {begin + number * shape.bytes(), shape};
}

}  // namespace smdist
