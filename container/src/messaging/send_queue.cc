// SPDX-License-Identifier: Apache-2.0
#include "messaging/send_queue.h"

#include <algorithm>

namespace smdist {

std::optional<Fragment> SendQueue::next(size_t fragment_bytes) {
  if (queue_.empty()) return std::nullopt;
  QueuedMessage head = queue_.front();
  queue_.pop_front();
  const size_t bytes = std::min(fragment_bytes, head.message.bytes - head.offset);
  const bool is_last = head.offset + bytes == head.message.bytes;
  const Fragment fragment{head.message, head.offset, bytes, is_last};
  head.offset += bytes;
  if (!is_last) queue_.push_back(head);
  return fragment;
}

void SendQueue::drop_call(const OperationId& call) {
  const auto is_of_call = [&](const QueuedMessage& each) {
    return call_of(each.message.id) == call_of(call);
  };
  queue_.erase(std::remove_if(queue_.begin(), queue_.end(), is_of_call), queue_.end());
}

size_t SendQueue::front_bytes() const {
  if (queue_.empty()) return 0;
  return queue_.front().message.bytes - queue_.front().offset;
}

}  // namespace smdist
