// SPDX-License-Identifier: Apache-2.0
// A minimal all-reduce of float32 on one host. It makes only the copies and sums that any
// all-reduce through shared memory needs, so its time is a lower bound, which depends on the memory
// and on the wake-ups by the kernel. It detects no failures, runs one sum at a time and does not
// check sizes.
//
// Each rank copies the shares of others to slots in shared memory, sums its own shard of the
// buffer, and copies the sums of others back. It works chunk by chunk: one chunk is copied while
// the previous one is summed.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace {

constexpr uint64_t kRanks = 8;  // maximum number of ranks
constexpr size_t kChunkBytes = 256 << 10;
constexpr size_t kSliceBytes = 16 << 10;  // fits in the level-1 cache
constexpr uint64_t kWindow = 8;
constexpr int kSpins = 4000;  // spins before a rank sleeps, if each rank has a processor

// A counter that only grows: one process writes it, others wait for a value.
class alignas(64) FutexCounter {
 public:
  void set(uint64_t value) {
    value_.store(value);
    if (sleepers_.load() == 0) return;
    ++wakeups_;
    ::syscall(SYS_futex, &wakeups_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  void await(uint64_t value, int spins) {
    for (int i = 0; i < spins && value_.load(std::memory_order_acquire) < value; ++i) {
      __builtin_ia32_pause();
    }
    while (value_.load() < value) {
      ++sleepers_;
      const uint32_t wakeups = wakeups_.load();
      if (value_.load() < value) {
        ::syscall(SYS_futex, &wakeups_, FUTEX_WAIT, wakeups, nullptr, nullptr, 0);
      }
      --sleepers_;
    }
  }

 private:
  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> wakeups_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// Shared memory of all ranks, zero at first as a new file is. Counters count the chunks of all
// sums, from 1.
struct SharedSlots {
  FutexCounter copied[kRanks][kRanks];  // by giver and owner
  FutexCounter summed[kRanks];          // by owner
  FutexCounter taken[kRanks][kRanks];   // by taker and owner
  std::byte slots[kRanks][kRanks][kWindow]
                 [kChunkBytes];  // by giver and owner; giver == owner: sums
};

class SharedMemoryAllReduce {
 public:
  SharedMemoryAllReduce(SharedSlots* shared, uint64_t rank, uint64_t ranks)
      : shared_(*shared),
        rank_(rank),
        ranks_(ranks),
        spins_(ranks <= static_cast<uint64_t>(::sysconf(_SC_NPROCESSORS_ONLN)) ? kSpins : 0) {}

  void sum(float* data, size_t count) {
    data_ = reinterpret_cast<std::byte*>(data);
    shard_bytes_ = count / ranks_ * sizeof(float);
    const uint64_t chunks = (shard_bytes_ + kChunkBytes - 1) / kChunkBytes;
    for (uint64_t step = 0; step < chunks + 2; ++step) {
      if (step < chunks) give(step);
      if (step >= 1 && step - 1 < chunks) add(step - 1);
      if (step >= 2) take(step - 2);
    }
    done_ += chunks;
  }

 private:
  uint64_t other(uint64_t step) const { return (rank_ + step) % ranks_; }
  size_t bytes_of(uint64_t chunk) const {
    return std::min(kChunkBytes, shard_bytes_ - chunk * kChunkBytes);
  }
  std::byte* element(uint64_t owner, uint64_t chunk) const {
    return data_ + owner * shard_bytes_ + chunk * kChunkBytes;
  }
  std::byte* slot(uint64_t giver, uint64_t owner, uint64_t chunk) const {
    return shared_.slots[giver][owner][(done_ + chunk) % kWindow];
  }
  // Returns the counter value that frees the slot of a chunk.
  uint64_t earlier(uint64_t chunk) const {
    return done_ + chunk >= kWindow ? done_ + chunk - kWindow + 1 : 0;
  }

  void give(uint64_t chunk) {
    for (uint64_t step = 1; step < ranks_; ++step) {
      const uint64_t owner = other(step);
      shared_.summed[owner].await(earlier(chunk), spins_);
      std::memcpy(slot(rank_, owner, chunk), element(owner, chunk), bytes_of(chunk));
      shared_.copied[rank_][owner].set(done_ + chunk + 1);
    }
  }

  void add(uint64_t chunk) {
    for (uint64_t step = 1; step < ranks_; ++step) {
      shared_.copied[other(step)][rank_].await(done_ + chunk + 1, spins_);
      shared_.taken[other(step)][rank_].await(earlier(chunk), spins_);
    }
    for (size_t at = 0; at < bytes_of(chunk); at += kSliceBytes) {
      add_slice(chunk, at, std::min(kSliceBytes, bytes_of(chunk) - at));
    }
    shared_.summed[rank_].set(done_ + chunk + 1);
  }

  void add_slice(uint64_t chunk, size_t at, size_t bytes) {
    auto* total = reinterpret_cast<float*>(element(rank_, chunk) + at);
    for (uint64_t step = 1; step < ranks_; ++step) {
      const auto* share = reinterpret_cast<const float*>(slot(other(step), rank_, chunk) + at);
      for (size_t i = 0; i < bytes / sizeof(float); ++i) total[i] += share[i];
    }
    std::memcpy(slot(rank_, rank_, chunk) + at, total, bytes);
  }

  void take(uint64_t chunk) {
    for (uint64_t step = 1; step < ranks_; ++step) {
      const uint64_t owner = other(step);
      shared_.summed[owner].await(done_ + chunk + 1, spins_);
      std::memcpy(element(owner, chunk), slot(owner, owner, chunk), bytes_of(chunk));
      shared_.taken[rank_][owner].set(done_ + chunk + 1);
    }
  }

  SharedSlots& shared_;
  const uint64_t rank_;
  const uint64_t ranks_;
  const int spins_;
  std::byte* data_ = nullptr;
  size_t shard_bytes_ = 0;
  uint64_t done_ = 0;  // chunks of earlier sums
};

}  // namespace

// Maps the file, which must be new and the same for all ranks. Returns null if it cannot be mapped.
extern "C" void* bare_open(const char* path, uint64_t rank, uint64_t ranks) {
  const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ranks > kRanks || ::ftruncate(fd, sizeof(SharedSlots)) != 0) return nullptr;
  void* at = ::mmap(nullptr, sizeof(SharedSlots), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return at == MAP_FAILED ? nullptr
                          : new SharedMemoryAllReduce(static_cast<SharedSlots*>(at), rank, ranks);
}

extern "C" void bare_sum(void* bare, float* data, uint64_t count) {
  static_cast<SharedMemoryAllReduce*>(bare)->sum(data, count);
}
