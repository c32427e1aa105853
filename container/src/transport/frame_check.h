// SPDX-License-Identifier: Apache-2.0
// Tags (checksums or message authentication codes) of frames between hosts.
//
// With a check, a frame on the wire is: header, tag of the header, payload, tag of the payload. A
// frame without a payload has no tag of the payload. The header has a tag of its own, so that its
// length can be trusted before the payload arrives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "smdist/options.h"
#include "transport/lane_keys.h"

namespace smdist {

constexpr size_t kMaxTagBytes = 16;

// Computes the tags of one direction of a lane. Each tag covers the bytes since the last one, and
// the number of tags before it, which is not sent. So both sides must compute them in one order.
//
// Thread safety: none.
class FrameCheck {
 public:
  virtual ~FrameCheck() = default;
  virtual size_t tag_bytes() const = 0;
  // Append bytes to those that the next tag covers.
  virtual void update(const void* data, size_t bytes) = 0;
  // Write the tag, tag_bytes() long, and begin the next one.
  virtual void finish(uint8_t* tag) = 0;
  // Return the rest of a sentence about a peer that sent a wrong tag.
  virtual std::string fault() const = 0;

  // Finish a tag and return whether it equals the one that the peer sent.
  bool matches(const uint8_t* theirs);
};

// Return the check that `integrity` requests; null for kOff.
std::unique_ptr<FrameCheck> make_frame_check(Integrity integrity, const Digest& key);

}  // namespace smdist
