// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104).
//
// This implementation keeps the core free of a crypto library. Only the authentication handshake
// between ranks uses it, so it need not be fast.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace smdist {

using Digest = std::array<uint8_t, 32>;

// Computes a SHA-256 digest of bytes that arrive in parts.
//
// Thread safety: none; use one object per thread.
class Sha256 final {
 public:
  Sha256();
  // Append bytes to the hashed data.
  void update(std::string_view bytes);
  // Return the digest. Call once; the object cannot be used afterwards.
  Digest finish();

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> block_{};
  size_t block_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

// Return the SHA-256 digest of bytes.
Digest sha256(std::string_view bytes);
// Return the HMAC-SHA256 of a message.
Digest hmac_sha256(std::string_view key, std::string_view message);

// Return whether two digests are equal, in a time that does not depend on where they differ.
bool equal_in_constant_time(const Digest& a, const Digest& b);

}  // namespace smdist
