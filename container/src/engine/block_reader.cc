// SPDX-License-Identifier: Apache-2.0
#include "engine/block_reader.h"

#include <cstring>

#include "smdist/errors.h"

namespace smdist {

const uint8_t* BlockReader::address(int rank, const BlockRef& block) const {
  const Span arena = transport_.arena_of(rank);
  const size_t offset = block.block * options_.block_bytes;
  const bool is_inside = block.bytes > 0 && block.bytes <= options_.block_bytes &&
                         offset + options_.block_bytes <= arena.bytes;
  if (!is_inside) {
    throw PeerError(
        "sent an address outside of its shared memory. Restart the job, and report this bug of "
        "smdist");
  }
  return static_cast<const uint8_t*>(arena.data) + offset;
}

bool BlockReader::deliver(PendingOperation& pending, int rank, const Frame& frame,
                          const BlockRef& block) {
  const uint8_t* bytes = address(rank, block);
  const int member = pending.member_of(rank);
  const Span target = pending.place(member, frame.tag, frame.offset, block.bytes);
  uint32_t& num_borrowed = num_borrowed_[static_cast<size_t>(rank)];
  const bool may_borrow = 2 * num_borrowed < options_.blocks_per_peer;
  if (may_borrow && pending.borrow(frame.tag, block.bytes, {member, block.block, bytes})) {
    ++num_borrowed;
    return false;
  }
  transport_.detach_payloads(target);
  std::memcpy(target.data, bytes, block.bytes);
  return true;
}

}  // namespace smdist
