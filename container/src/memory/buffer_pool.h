// SPDX-License-Identifier: Apache-2.0
// Pool of reusable buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace smdist {

constexpr size_t kCacheLineBytes = 64;

// Deleter of a Buffer.
struct AlignedFree {
  void operator()(uint8_t* data) const;
};

// Uninitialized memory, aligned to a cache line.
struct Buffer {
  std::unique_ptr<uint8_t, AlignedFree> data;
  size_t bytes = 0;
};

// Provides buffers, and stores returned ones for reuse, because the first access to new pages costs
// more than the sums computed in them.
//
// Thread safety: none.
class BufferPool final {
 public:
  // idle_limit_bytes: maximum total size of unused buffers.
  explicit BufferPool(size_t idle_limit_bytes) : idle_limit_bytes_(idle_limit_bytes) {}

  // Return a buffer of at least `bytes` bytes; an empty one for 0.
  Buffer take(size_t bytes);
  // Return a buffer to the pool.
  void give_back(Buffer buffer);

 private:
  const size_t idle_limit_bytes_;
  size_t idle_bytes_ = 0;
  std::vector<Buffer> idle_;
};

}  // namespace smdist
