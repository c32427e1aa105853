// SPDX-License-Identifier: Apache-2.0
#include "messaging/block_ref.h"

#include "base/little_endian.h"
#include "messaging/frame.h"
#include "smdist/errors.h"

namespace smdist {

std::string encode(const BlockRef& ref) {
  uint8_t bytes[kBlockRefBytes];
  put<uint32_t>(&bytes[0], ref.block);
  put<uint32_t>(&bytes[4], ref.bytes);
  return std::string(bytes, bytes + kBlockRefBytes);
}

BlockRef decode_block_ref(const std::vector<uint8_t>& bytes) {
  if (bytes.size() != kBlockRefBytes)
    throw PeerError("sent a block reference of " + std::to_string(bytes.size()) +
                    " bytes instead of " + std::to_string(kBlockRefBytes));
  return {get<uint32_t>(&bytes[0]), get<uint32_t>(&bytes[4])};
}

}  // namespace smdist
