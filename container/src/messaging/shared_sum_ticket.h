// SPDX-License-Identifier: Apache-2.0
// Location of a rank's reduction buffer for a sum in shared memory.
#pragma once

#include <cstdint>
#include <string>

namespace smdist {

struct SharedSumTicket {
  uint32_t buffer = 0;  // number of the reduction buffer in the rank's arena
  uint64_t count = 0;   // value of its counters before the sum
};

std::string encode(const SharedSumTicket& ticket);

// Requires: kSharedSumTicketBytes bytes.
SharedSumTicket decode_shared_sum_ticket(const uint8_t* bytes);

}  // namespace smdist
