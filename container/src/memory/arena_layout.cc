// SPDX-License-Identifier: Apache-2.0
#include "memory/arena_layout.h"

namespace smdist {
namespace {

constexpr size_t kMostSharers =
    16;  // the memory for slots grows with the square of the number of ranks
constexpr size_t kReductionBuffers =
    3;  // one sum runs, one has yet to be read by others, one is starting
constexpr size_t kPageBytes = 4096;

size_t next_page(size_t offset) { return (offset + kPageBytes - 1) / kPageBytes * kPageBytes; }

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
      num_reduction_buffers(ranks.size() > 1 && ranks.size() <= kMostSharers ? kReductionBuffers
                                                                             : 0),
      caller_memory_at(next_page(blocks_bytes + num_reduction_buffers * shape.bytes())),
      caller_memory_bytes(ranks.size() > 1 ? options.caller_memory_bytes : 0),
      bytes(caller_memory_at + caller_memory_bytes) {}

Span ArenaLayout::caller_memory(const Span& arena) const {
  if (arena.bytes < bytes || caller_memory_bytes == 0) return {};
  return {static_cast<uint8_t*>(arena.data) + caller_memory_at, caller_memory_bytes};
}

ReductionBuffer ArenaLayout::reduction_buffer(const Span& arena, size_t number) const {
  auto* begin = static_cast<uint8_t*>(arena.data) + blocks_bytes;
  return {begin + number * shape.bytes(), shape};
}

}  // namespace smdist
