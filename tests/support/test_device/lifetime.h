// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace test_device {

// How often a block of memory was handed out, and which of its allocations have ended for the
// streams: a device block's ends when its poison is written, a pinned block's when it is in the
// pool again.
struct Lifetime {
  std::atomic<uint64_t> allocations{0};
  std::atomic<uint64_t> ended{0};
};

// One allocation of a block that an operation uses, kept from when the operation is queued.
class BlockUse final {
 public:
  explicit BlockUse(std::shared_ptr<Lifetime> lifetime)
      : lifetime_(std::move(lifetime)), allocation_(lifetime_->allocations) {}

  // Whether the allocation had ended: then the operation that uses it comes too late.
  bool is_stale() const { return lifetime_->ended >= allocation_; }

 private:
  std::shared_ptr<Lifetime> lifetime_;
  uint64_t allocation_;
};

// The blocks that one operation uses, on the device and on the host.
struct BlockUses {
  std::vector<BlockUse> device;
  std::vector<BlockUse> pinned;

  void add(const void* pointer);  // of a device, into a pinned block, or of no interest
  void count_stale() const;       // called by the operation when it runs
};

// How many operations ran on a block whose allocation had ended.
struct StaleUses {
  std::atomic<int64_t> device{0};
  std::atomic<int64_t> pinned{0};
};
StaleUses& stale_uses();

}  // namespace test_device
