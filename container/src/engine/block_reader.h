// SPDX-License-Identifier: Apache-2.0
// Receipt of messages in blocks of the peers' shared memory.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/pending_operation.h"
#include "messaging/block_ref.h"
#include "messaging/frame.h"
#include "smdist/options.h"
#include "smdist/transport.h"

namespace smdist {

// Delivers messages, whose bytes are in blocks of a peer's shared memory, to their operations. If a
// reduction is the only reader of the bytes, the operation borrows the block: the reduction reads
// the block itself. Otherwise the bytes are copied, and the block is released at once.
//
// At most half of a peer's blocks are borrowed at a time. So an operation that waits for a third
// rank cannot use up the blocks that other operations need.
//
// Thread safety: none.
class BlockReader final {
 public:
  BlockReader(const Options& options, Transport& transport)
      : options_(options),
        transport_(transport),
        num_borrowed_(static_cast<size_t>(options.size)) {}

  // Return the address of a block's bytes. Throws PeerError if they are not in the peer's arena.
  const uint8_t* address(int rank, const BlockRef& block) const;

  // Deliver the bytes of a block to an operation. frame: the frame that contained the reference to
  // the block. Returns true if the bytes were copied: release the block now. Returns false if the
  // block was borrowed: call on_returned() when the reduction has read it.
  bool deliver(PendingOperation& pending, int rank, const Frame& frame, const BlockRef& block);
  void on_returned(int rank) { --num_borrowed_[static_cast<size_t>(rank)]; }

 private:
  const Options& options_;
  Transport& transport_;
  std::vector<uint32_t> num_borrowed_;  // number of borrowed blocks, by peer
};

}  // namespace smdist
