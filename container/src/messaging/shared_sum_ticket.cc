// SPDX-License-Identifier: Apache-2.0
#include "messaging/shared_sum_ticket.h"

#include "base/little_endian.h"
#include "messaging/frame.h"

namespace smdist {

std::string encode(const SharedSumTicket& ticket) {
  uint8_t bytes[kSharedSumTicketBytes];
  put<uint32_t>(&bytes[0], ticket.buffer);
  put<uint64_t>(&bytes[4], ticket.count);
  put<uint64_t>(&bytes[12], ticket.data_at);
  return std::string(bytes, bytes + kSharedSumTicketBytes);
}

SharedSumTicket decode_shared_sum_ticket(const uint8_t* bytes) {
  return {get<uint32_t>(&bytes[0]), get<uint64_t>(&bytes[4]), get<uint64_t>(&bytes[12])};
}

}  // namespace smdist
