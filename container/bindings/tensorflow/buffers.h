// SPDX-License-Identifier: Apache-2.0
// Memory for tensors on their way, used again when TensorFlow has let go of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/buffer_pool.h"

namespace smdist::tensorflow_binding {

// TensorFlow takes memory over without a copy only if it begins here.
constexpr size_t kAlignment = kCacheLineBytes;

// How many bytes a tensor takes in a buffer that others follow it in.
constexpr size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// One piece of memory, given back to the process's pool by the last who holds it.
//
// Thread safety: none; different ones may be made and dropped by any thread.
class HeldBuffer final {
 public:
  explicit HeldBuffer(size_t bytes);
  ~HeldBuffer();
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

  uint8_t* data() const { return buffer_.data.get(); }

 private:
  Buffer buffer_;
};

using BufferPtr = std::shared_ptr<HeldBuffer>;

// How many are held now.
int64_t live_buffers();

}  // namespace smdist::tensorflow_binding
