// SPDX-License-Identifier: Apache-2.0
#include "transport/frame_check.h"

#include "base/crc32c.h"
#include "base/little_endian.h"
#include "transport/openssl.h"

namespace smdist {
namespace {

class Crc32cCheck final : public FrameCheck {
 public:
  Crc32cCheck() { begin(); }
  size_t tag_bytes() const override { return sizeof crc_; }
  void update(const void* data, size_t bytes) override { crc_ = crc32c(data, bytes, crc_); }
  void finish(uint8_t* tag) override {
    put<uint32_t>(tag, crc_);
    begin();
  }
  std::string fault() const override {
    return "sent a frame with a wrong checksum (CRC-32C): its bytes were changed between the two "
           "hosts. Replace the host or the network device that changes bytes; if there may be an "
           "attacker, use integrity='mac' or encrypt=True";
  }

 private:
  void begin() {
    uint8_t counter[8];
    put<uint64_t>(counter, counter_++);
    crc_ = crc32c(counter, sizeof counter);
  }

  uint64_t counter_ = 0;
  uint32_t crc_ = 0;
};

}  // namespace

bool FrameCheck::matches(const uint8_t* theirs) {
  uint8_t ours[kMaxTagBytes];
  finish(ours);
  uint8_t difference = 0;
  for (size_t i = 0; i < tag_bytes(); ++i) difference |= ours[i] ^ theirs[i];
  return difference == 0;  // in a time that does not depend on where they differ
}

std::unique_ptr<FrameCheck> make_frame_check(Integrity integrity, const Digest& key) {
  switch (integrity) {
    case Integrity::kOff:
      return nullptr;
    case Integrity::kCrc32c:
      return std::make_unique<Crc32cCheck>();
    case Integrity::kMac:
      return make_gmac_check(key);
  }
  return nullptr;
}

}  // namespace smdist
