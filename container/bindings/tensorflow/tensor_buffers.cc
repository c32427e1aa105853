// SPDX-License-Identifier: Apache-2.0
#include "tensor_buffers.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace smdist::tensorflow_binding {
namespace {

constexpr size_t kIdleBytes = size_t{256} << 20;

// Pool of all buffers. Never destroyed, because TensorFlow may free tensors at the very end of the
// process.
struct Pool {
  std::mutex mutex;
  BufferPool buffers{kIdleBytes};  // guarded by mutex
  std::atomic<int64_t> live{0};
};

Pool& pool() {
  static auto* const of_process = new Pool;
  return *of_process;
}

}  // namespace

PooledBuffer::PooledBuffer(size_t bytes) {
  Pool& from = pool();
  const std::lock_guard<std::mutex> lock(from.mutex);
  buffer_ = from.buffers.take(bytes);
  ++from.live;
}

PooledBuffer::~PooledBuffer() {
  Pool& to = pool();
  const std::lock_guard<std::mutex> lock(to.mutex);
  to.buffers.give_back(std::move(buffer_));
  --to.live;
}

int64_t live_buffers() { return pool().live; }

}  // namespace smdist::tensorflow_binding
