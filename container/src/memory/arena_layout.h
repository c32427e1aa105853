// SPDX-License-Identifier: Apache-2.0
// Offsets of the parts of an arena, the same for all ranks of a host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "memory/reduction_buffer.h"
#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

// Layout of an arena: first the blocks of messages, then the reduction buffers.
struct ArenaLayout {
  explicit ArenaLayout(const Options& options);

  // Returns the part of the arena that holds blocks; empty if there is no arena.
  Span blocks(const Span& arena) const { return {arena.data, std::min(arena.bytes, blocks_bytes)}; }
  ReductionBuffer reduction_buffer(const Span& arena, size_t number) const;

  std::vector<int> ranks;  // all ranks of this host, this one included
  size_t blocks_bytes = 0;
  ReductionBuffer::Shape shape;
  size_t num_reduction_buffers = 0;
  size_t bytes = 0;  // size of the whole arena, without ring buffers
};

}  // namespace smdist
