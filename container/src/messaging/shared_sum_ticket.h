// SPDX-License-Identifier: Apache-2.0
// Location of a rank's reduction buffer for a sum in shared memory.
#pragma once

#include <cstdint>
#include <string>

namespace smdist {

// Number of a rank's reduction buffer for one sum, which the rank sends to the other members.
struct SharedSumTicket {
  uint32_t buffer = 0;  // number of the reduction buffer in the rank's arena
  uint64_t count = 0;   // value of the buffer's counters before the sum
  // Offset of the data, input and later result, in the rank's memory of callers; kInSlots: the rank
  // copies them to the slots of the buffer.
  uint64_t data_at = kInSlots;

  static constexpr uint64_t kInSlots = UINT64_MAX;
};

// Return the ticket in the wire format.
std::string encode(const SharedSumTicket& ticket);

// Decode a ticket of kSharedSumTicketBytes bytes.
SharedSumTicket decode_shared_sum_ticket(const uint8_t* bytes);

}  // namespace smdist
