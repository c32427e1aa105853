// SPDX-License-Identifier: Apache-2.0
#include "messaging/meeting.h"

#include "base/little_endian.h"
#include "messaging/frame.h"

namespace smdist {

std::string encode(const Meeting& meeting) {
  uint8_t bytes[kMeetingBytes];
  put<uint32_t>(&bytes[0], meeting.exchange);
  put<uint64_t>(&bytes[4], meeting.count);
  return std::string(bytes, bytes + kMeetingBytes);
}

Meeting decode_meeting(const uint8_t* bytes) {
  return {get<uint32_t>(&bytes[0]), get<uint64_t>(&bytes[4])};
}

}  // namespace smdist
