// SPDX-License-Identifier: Apache-2.0
#include "engine/rtr_message.h"

#include <algorithm>

namespace smdist {

RtrMessage decode_rtr(FrameType type, const std::vector<uint8_t>& payload) {
  DescriptorBytes descriptor;
  std::copy_n(payload.begin(), descriptor.size(), descriptor.begin());
  RtrMessage message;
  message.descriptor = decode_descriptor(descriptor);
  const uint8_t* rest = payload.data() + kDescriptorBytes;
  if (type == FrameType::kRtrTicket) message.ticket = decode_shared_sum_ticket(rest);
  if (type == FrameType::kRtrEagerBlock) {
    message.eager_block = decode_block_ref({rest, payload.data() + payload.size()});
  }
  if (type == FrameType::kRtrEager) {
    message.eager = rest;
    message.eager_bytes = payload.size() - kDescriptorBytes;
  }
  return message;
}

}  // namespace smdist
