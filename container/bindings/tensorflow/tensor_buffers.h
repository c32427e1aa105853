// SPDX-License-Identifier: Apache-2.0
// Pooled memory for the results of operations, reused after TensorFlow releases it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/buffer_pool.h"

namespace smdist::tensorflow_binding {

// Alignment that TensorFlow requires to adopt memory without a copy.
constexpr size_t kAlignment = kCacheLineBytes;

// Return the number of bytes that a tensor occupies in a buffer of several tensors.
constexpr size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Buffer whose destructor returns its memory to the pool of the process.
//
// Thread safety: none; different buffers may be created and destroyed by any thread.
class PooledBuffer final {
 public:
  explicit PooledBuffer(size_t bytes);
  ~PooledBuffer();
  PooledBuffer(const PooledBuffer&) = delete;
  PooledBuffer& operator=(const PooledBuffer&) = delete;

  uint8_t* data() const { return buffer_.data.get(); }

 private:
  Buffer buffer_;
};

using BufferPtr = std::shared_ptr<PooledBuffer>;

// Return the number of buffers in use.
int64_t live_buffers();

}  // namespace smdist::tensorflow_binding
