// SPDX-License-Identifier: Apache-2.0
#include "messaging/place.h"

#include "base/little_endian.h"
#include "messaging/frame.h"
#include "smdist/errors.h"

namespace smdist {

std::string encode(const Place& place) {
  uint8_t bytes[kPlaceBytes];
  put<uint32_t>(&bytes[0], place.block);
  put<uint32_t>(&bytes[4], place.bytes);
  return std::string(bytes, bytes + kPlaceBytes);
}

Place decode_place(const std::vector<uint8_t>& bytes) {
  if (bytes.size() != kPlaceBytes) throw PeerError("described no place in its memory");
  return {get<uint32_t>(&bytes[0]), get<uint32_t>(&bytes[4])};
}

}  // namespace smdist
