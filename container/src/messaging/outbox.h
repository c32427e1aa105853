// SPDX-License-Identifier: Apache-2.0
// What waits to be sent to one peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "messaging/operation_id.h"

namespace smdist {

// A message of an operation that may go now.
struct Outgoing {
  OperationId id;
  uint32_t step = 0;  // of the operation's plan
  uint32_t tag = 0;
  uint8_t* data = nullptr;
  size_t bytes = 0;   // above zero
  uint32_t lane = 0;  // all of it takes the same one, so that it arrives in order
};

// A part of it that fits in one frame.
struct Chunk {
  Outgoing message;
  size_t offset = 0;
  size_t bytes = 0;
  bool is_last = false;
};

// Cuts messages in chunks and serves them in turns, so that a short operation
// overtakes a long one.
//
// Thread safety: none.
class Outbox final {
 public:
  void push(const Outgoing& message) { waiting_.push_back({message, 0}); }
  std::optional<Chunk> next(size_t chunk_bytes);
  size_t front_bytes() const;  // what is left of the message whose turn it is
  void clear() { waiting_.clear(); }

 private:
  struct Progress {
    Outgoing message;
    size_t offset;
  };
  std::deque<Progress> waiting_;
};

}  // namespace smdist
