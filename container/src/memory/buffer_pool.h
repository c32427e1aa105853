// SPDX-License-Identifier: Apache-2.0
// Scratch memory that is used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace smdist {

constexpr size_t kCacheLineBytes = 64;

struct AlignedFree {
  void operator()(uint8_t* data) const;
};

// Memory aligned to a cache line, of undefined content.
struct Buffer {
  std::unique_ptr<uint8_t, AlignedFree> data;
  size_t bytes = 0;
};

// Hands out buffers and keeps what comes back, because the first touch of fresh
// pages costs more than the sums that are done in them.
//
// Thread safety: none.
class BufferPool final {
 public:
  // Keeps at most so many bytes that nobody uses.
  explicit BufferPool(size_t idle_limit_bytes) : idle_limit_bytes_(idle_limit_bytes) {}

  // A buffer of at least so many bytes; none for 0.
  Buffer take(size_t bytes);
  void give_back(Buffer buffer);

 private:
  const size_t idle_limit_bytes_;
  size_t idle_bytes_ = 0;
  std::vector<Buffer> idle_;
};

}  // namespace smdist
