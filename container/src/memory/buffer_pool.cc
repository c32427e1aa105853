// SPDX-License-Identifier: Apache-2.0
#include "memory/buffer_pool.h"

#include <algorithm>
#include <new>

namespace smdist {
namespace {

Buffer fresh(size_t bytes) {
  void* data = ::operator new(bytes, std::align_val_t{kCacheLineBytes});
  return {std::unique_ptr<uint8_t, AlignedFree>(static_cast<uint8_t*>(data)), bytes};
}

}  // namespace

void AlignedFree::operator()(uint8_t* data) const {
  ::operator delete(data, std::align_val_t{kCacheLineBytes});
}

Buffer BufferPool::take(size_t bytes) {
  if (bytes == 0) return {};
  // Choose the smallest buffer that fits and is at most four times too large.
  auto best = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    const bool fits = it->bytes >= bytes && it->bytes / 4 <= bytes;
    if (fits && (best == idle_.end() || it->bytes < best->bytes)) best = it;
  }
  if (best == idle_.end()) return fresh(bytes);
  Buffer found = std::move(*best);
  idle_.erase(best);
  idle_bytes_ -= found.bytes;
  return found;
}

void BufferPool::give_back(Buffer buffer) {
  if (!buffer.data || buffer.bytes > idle_limit_bytes_) return;
  idle_bytes_ += buffer.bytes;
  idle_.push_back(std::move(buffer));
  while (idle_bytes_ > idle_limit_bytes_) {
    idle_bytes_ -= idle_.front().bytes;
    idle_.erase(idle_.begin());
  }
}

}  // namespace smdist
