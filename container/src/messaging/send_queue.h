// SPDX-License-Identifier: Apache-2.0
// Queue of messages to one peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "messaging/operation_id.h"

namespace smdist {

// A message of an operation that may be sent now.
struct OutgoingMessage {
  OperationId id;
  uint32_t step = 0;  // index in the operation's plan
  uint32_t tag = 0;
  uint8_t* data = nullptr;
  size_t bytes = 0;               // above zero
  uint32_t lane = 0;              // the same for all fragments, so that they arrive in order
  uint64_t operation_serial = 0;  // see Submission::serial
};

// A part of a message that fits in one frame.
struct Fragment {
  OutgoingMessage message;
  size_t offset = 0;
  size_t bytes = 0;
  bool is_last = false;
};

// Cuts messages into fragments and sends them round-robin, so that a short message need not wait
// for a long one.
//
// Thread safety: none.
class SendQueue final {
 public:
  void push(const OutgoingMessage& message) { queue_.push_back({message, 0}); }
  std::optional<Fragment> next(size_t fragment_bytes);
  size_t front_bytes() const;  // unsent bytes of the message that is next
  void clear() { queue_.clear(); }

 private:
  struct QueuedMessage {
    OutgoingMessage message;
    size_t offset;
  };
  std::deque<QueuedMessage> queue_;
};

}  // namespace smdist
