// SPDX-License-Identifier: Apache-2.0
// Layout of an arena, the same for all ranks of a host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "memory/reduction_buffer.h"
#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

// Layout of an arena: first the blocks for messages, then the reduction buffers, then the memory of
// callers, which begins on a page.
struct ArenaLayout {
  explicit ArenaLayout(const Options& options);

  // Return the part of the arena that contains the blocks; empty if there is no arena.
  Span blocks(const Span& arena) const { return {arena.data, std::min(arena.bytes, blocks_bytes)}; }
  // Return the part of an arena that callers use; empty if there is no arena.
  Span caller_memory(const Span& arena) const;
  // Return one of the reduction buffers of an arena.
  ReductionBuffer reduction_buffer(const Span& arena, size_t number) const;

  std::vector<int> ranks;  // all ranks of this host, this one included
  size_t blocks_bytes = 0;
  ReductionBuffer::Shape shape;
  size_t num_reduction_buffers = 0;
  size_t caller_memory_at = 0;  // offset in the arena
  size_t caller_memory_bytes = 0;
  size_t bytes = 0;  // size of all these parts; ring buffers follow after them
};

}  // namespace smdist
