// SPDX-License-Identifier: Apache-2.0
// Queue of the messages to one peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "messaging/operation_id.h"

namespace smdist {

// A message of an operation that can be sent now.
struct OutgoingMessage {
  OperationId id;
  uint32_t step = 0;  // index in the operation's plan
  uint32_t tag = 0;
  uint8_t* data = nullptr;
  size_t bytes = 0;               // above zero
  uint32_t lane = 0;              // lane of all fragments, so that they arrive in order
  uint64_t operation_serial = 0;  // see Submission::serial
};

// A part of a message that fits in one frame.
struct Fragment {
  OutgoingMessage message;
  size_t offset = 0;
  size_t bytes = 0;
  bool is_last = false;
};

// Splits messages into fragments and returns fragments of all messages in turn, so that a short
// message does not wait for the end of a long one.
//
// Thread safety: none.
class SendQueue final {
 public:
  void push(const OutgoingMessage& message) { queue_.push_back({message, 0}); }
  // Remove and return the next fragment, of at most fragment_bytes bytes; none if the queue is
  // empty.
  std::optional<Fragment> next(size_t fragment_bytes);
  // Return the number of unsent bytes of the message whose fragment is next; 0 if the queue is
  // empty.
  size_t front_bytes() const;
  // Remove the messages of all operations of a call.
  void drop_call(const OperationId& call);
  void clear() { queue_.clear(); }

 private:
  // A message and the number of its bytes that have been returned.
  struct QueuedMessage {
    OutgoingMessage message;
    size_t offset;
  };
  std::deque<QueuedMessage> queue_;
};

}  // namespace smdist
