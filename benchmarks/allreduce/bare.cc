// SPDX-License-Identifier: Apache-2.0
// An all-reduce of float32 on one host that is nothing but its copies and sums: what memory and
// the kernel's wake-ups leave to any that passes through shared memory. No failure is noticed,
// nothing else may happen meanwhile, and sizes are not checked. See README.md.
//
// Each rank copies the shares of others to its arena, sums its own shard of the buffer, and
// copies the sums of others back, piece by piece: one is copied while the one before is summed.
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

constexpr uint64_t kRanks = 8;  // at most
constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kSliceBytes = 16 << 10;  // stays in the nearest cache
constexpr uint64_t kWindow = 8;
constexpr int kLooks = 4000;  // before a rank sleeps that has a processor to itself

// A number that only grows, by one writer; others wait for it.
class alignas(64) Count {
 public:
  void set(uint64_t value) {
    value_.store(value);
    if (sleepers_.load() == 0) return;
    ++calls_;
    ::syscall(SYS_futex, &calls_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  void await(uint64_t value, int looks) {
    for (int i = 0; i < looks && value_.load(std::memory_order_acquire) < value; ++i) {
      __builtin_ia32_pause();
    }
    while (value_.load() < value) {
      ++sleepers_;
      const uint32_t calls = calls_.load();
      if (value_.load() < value) {
        ::syscall(SYS_futex, &calls_, FUTEX_WAIT, calls, nullptr, nullptr, 0);
      }
      --sleepers_;
    }
  }

 private:
  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> calls_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// Zero at first, as a new file is. Pieces are counted over all sums, from 1.
struct Shared {
  Count copied[kRanks][kRanks];                           // by giver and owner
  Count summed[kRanks];                                   // by owner
  Count taken[kRanks][kRanks];                            // by taker and owner
  std::byte slots[kRanks][kRanks][kWindow][kPieceBytes];  // by giver and owner; to itself: sums
};

class Bare {
 public:
  Bare(Shared* shared, uint64_t rank, uint64_t ranks)
      : shared_(*shared),
        rank_(rank),
        ranks_(ranks),
        looks_(ranks <= static_cast<uint64_t>(::sysconf(_SC_NPROCESSORS_ONLN)) ? kLooks : 0) {}

  void sum(float* data, size_t count) {
    data_ = reinterpret_cast<std::byte*>(data);
    shard_bytes_ = count / ranks_ * sizeof(float);
    const uint64_t pieces = (shard_bytes_ + kPieceBytes - 1) / kPieceBytes;
    for (uint64_t step = 0; step < pieces + 2; ++step) {
      if (step < pieces) give(step);
      if (step >= 1 && step - 1 < pieces) add(step - 1);
      if (step >= 2) take(step - 2);
    }
    done_ += pieces;
  }

 private:
  uint64_t other(uint64_t step) const { return (rank_ + step) % ranks_; }
  size_t bytes_of(uint64_t piece) const {
    return std::min(kPieceBytes, shard_bytes_ - piece * kPieceBytes);
  }
  std::byte* place(uint64_t owner, uint64_t piece) const {
    return data_ + owner * shard_bytes_ + piece * kPieceBytes;
  }
  std::byte* slot(uint64_t giver, uint64_t owner, uint64_t piece) const {
    return shared_.slots[giver][owner][(done_ + piece) % kWindow];
  }
  // What has to be over before a piece may use its slot.
  uint64_t earlier(uint64_t piece) const {
    return done_ + piece >= kWindow ? done_ + piece - kWindow + 1 : 0;
  }

  void give(uint64_t piece) {
    for (uint64_t step = 1; step < ranks_; ++step) {
      const uint64_t owner = other(step);
      shared_.summed[owner].await(earlier(piece), looks_);
      std::memcpy(slot(rank_, owner, piece), place(owner, piece), bytes_of(piece));
      shared_.copied[rank_][owner].set(done_ + piece + 1);
    }
  }

  void add(uint64_t piece) {
    for (uint64_t step = 1; step < ranks_; ++step) {
      shared_.copied[other(step)][rank_].await(done_ + piece + 1, looks_);
      shared_.taken[other(step)][rank_].await(earlier(piece), looks_);
    }
    for (size_t at = 0; at < bytes_of(piece); at += kSliceBytes) {
      add_slice(piece, at, std::min(kSliceBytes, bytes_of(piece) - at));
    }
    shared_.summed[rank_].set(done_ + piece + 1);
  }

  void add_slice(uint64_t piece, size_t at, size_t bytes) {
    auto* total = reinterpret_cast<float*>(place(rank_, piece) + at);
    for (uint64_t step = 1; step < ranks_; ++step) {
      const auto* share = reinterpret_cast<const float*>(slot(other(step), rank_, piece) + at);
      for (size_t i = 0; i < bytes / sizeof(float); ++i) total[i] += share[i];
    }
    std::memcpy(slot(rank_, rank_, piece) + at, total, bytes);
  }

  void take(uint64_t piece) {
    for (uint64_t step = 1; step < ranks_; ++step) {
      const uint64_t owner = other(step);
      shared_.summed[owner].await(done_ + piece + 1, looks_);
      std::memcpy(place(owner, piece), slot(owner, owner, piece), bytes_of(piece));
      shared_.taken[rank_][owner].set(done_ + piece + 1);
    }
  }

  Shared& shared_;
  const uint64_t rank_;
  const uint64_t ranks_;
  const int looks_;
  std::byte* data_ = nullptr;
  size_t shard_bytes_ = 0;
  uint64_t done_ = 0;  // pieces of earlier sums
};

}  // namespace

// The file is the same for all ranks, and new. Null: it cannot be mapped.
extern "C" void* bare_open(const char* path, uint64_t rank, uint64_t ranks) {
  const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ranks > kRanks || ::ftruncate(fd, sizeof(Shared)) != 0) return nullptr;
  void* at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return at == MAP_FAILED ? nullptr : new Bare(static_cast<Shared*>(at), rank, ranks);
}

extern "C" void bare_sum(void* bare, float* data, uint64_t count) {
  static_cast<Bare*>(bare)->sum(data, count);
}
