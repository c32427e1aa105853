// SPDX-License-Identifier: Apache-2.0
// Where a rank takes part in a sum in shared memory.
#pragma once

#include <cstdint>
#include <string>

namespace smdist {

struct Meeting {
  uint32_t exchange = 0;  // of the rank's arena
  uint64_t count = 0;     // where its counters stand before the sum
};

std::string encode(const Meeting& meeting);

// Of kMeetingBytes.
Meeting decode_meeting(const uint8_t* bytes);

}  // namespace smdist
