// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace test_device {

// Pauses between two looks at what others do, longer each time, up to a millisecond.
class Pauses final {
 public:
  void pause();

 private:
  int microseconds_ = 20;
};

// Memory through which the ranks of one host exchange buffers, one operation after the other.
//
// Each rank writes its buffer, then counts the operation as arrived; reads those of all ranks when
// all have arrived; then counts it as read, so that all may write again.
//
// Thread safety: one thread at a time; abort() from any thread.
class SharedExchange final {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 20;  // of one rank's buffer

  // path: of a file that all ranks map, and the first one makes.
  SharedExchange(const std::string& path, int rank, int size);
  ~SharedExchange();
  SharedExchange(const SharedExchange&) = delete;
  SharedExchange& operator=(const SharedExchange&) = delete;

  // Exchanges buffers: calls read(rank, its buffer) for each rank, beginning with the one after
  // this one. Returns false if abort() was called before all ranks came.
  bool exchange(const void* buffer, size_t bytes,
                const std::function<void(int, const char*)>& read);
  void abort() { is_aborted_ = true; }

 private:
  struct Counters {
    std::atomic<uint64_t> arrived{0};
    std::atomic<uint64_t> read{0};
  };
  Counters& counters_of(int rank) const;
  char* buffer_of(int rank) const;
  bool await(std::atomic<uint64_t> Counters::* counter, uint64_t count) const;

  const int rank_;
  const int size_;
  const size_t bytes_;
  char* memory_ = nullptr;
  uint64_t num_exchanges_ = 0;
  std::atomic<bool> is_aborted_{false};
};

}  // namespace test_device
