// SPDX-License-Identifier: Apache-2.0
#include "messaging/outbox.h"

#include <algorithm>

namespace smdist {

std::optional<Chunk> Outbox::next(size_t chunk_bytes) {
  if (waiting_.empty()) return std::nullopt;
  Progress turn = waiting_.front();
  waiting_.pop_front();
  const size_t bytes = std::min(chunk_bytes, turn.message.bytes - turn.offset);
  const bool is_last = turn.offset + bytes == turn.message.bytes;
  const Chunk chunk{turn.message, turn.offset, bytes, is_last};
  turn.offset += bytes;
  if (!is_last) waiting_.push_back(turn);
  return chunk;
}

size_t Outbox::front_bytes() const {
  if (waiting_.empty()) return 0;
  return waiting_.front().message.bytes - waiting_.front().offset;
}

}  // namespace smdist
