// SPDX-License-Identifier: Apache-2.0
// What lies where in a rank's arena. The same for all ranks of a host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "memory/exchange.h"
#include "smdist/operation.h"
#include "smdist/options.h"

namespace smdist {

// Blocks come first, then exchanges.
struct ArenaLayout {
  explicit ArenaLayout(const Options& options);

  // None where there is no arena.
  Span blocks(const Span& arena) const { return {arena.data, std::min(arena.bytes, blocks_bytes)}; }
  Exchange exchange(const Span& arena, size_t number) const;

  std::vector<int> ranks;  // of this host
  size_t blocks_bytes = 0;
  Exchange::Shape shape;
  size_t num_exchanges = 0;
  size_t bytes = 0;  // of all that
};

}  // namespace smdist
