// SPDX-License-Identifier: Apache-2.0
// Messages that peers leave in blocks of their shared memory.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/pending_operation.h"
#include "messaging/block_ref.h"
#include "messaging/frame.h"
#include "smdist/options.h"
#include "smdist/transport.h"

namespace smdist {

// Delivers such a message to its operation. If a reduction is the only reader, the operation
// borrows the block and reads the bytes where they lie; otherwise they are copied.
//
// At most half of a peer's blocks are borrowed at a time. The other half goes back at once, so
// that an operation which waits for a third rank cannot hold up the other operations.
//
// Thread safety: none.
class BlockReader final {
 public:
  BlockReader(const Options& options, Transport& transport)
      : options_(options),
        transport_(transport),
        num_borrowed_(static_cast<size_t>(options.size)) {}

  // Address of the bytes. Throws PeerError if they are not in the peer's arena.
  const uint8_t* address(int rank, const BlockRef& block) const;

  // frame: the one that the block came with. Returns whether the bytes were copied, so that the
  // block can be released now; if not, on_returned() must be called when it can be.
  bool deliver(PendingOperation& pending, int rank, const Frame& frame, const BlockRef& block);
  void on_returned(int rank) { --num_borrowed_[static_cast<size_t>(rank)]; }

 private:
  const Options& options_;
  Transport& transport_;
  std::vector<uint32_t> num_borrowed_;  // blocks, by peer
};

}  // namespace smdist
