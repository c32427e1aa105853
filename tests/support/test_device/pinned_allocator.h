// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "lifetime.h"
#include "scheduler.h"

namespace test_device {

// Hands out pinned host memory by the rules of CUDA's caching host allocator.
//
// A freed block is handed out again after all streams have passed that record_event() named since
// it was allocated; then it is filled with kPoison. A copy names its stream; other work on the
// host, or a copy through a pointer into the middle of a block, is nobody's record.
//
// Thread safety: every function may be called from any thread.
class PinnedAllocator final : public at::HostAllocator {
 public:
  PinnedAllocator();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;

  // Names a stream that uses the block at `pointer`, or the one whose context is `context`.
  // Returns whether there is such a block.
  bool record_event(void* pointer, void* context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  // Memory of others that is pinned from now on, and counts towards the limit; nobody looks after
  // what streams do with it.
  void add_registered(void* memory, size_t bytes);
  void remove_registered(void* memory);
  size_t registered_bytes();

  void free(void* pointer);
  bool contains(const void* pointer);
  void set_limit(size_t bytes);  // of all blocks, handed out or cached
  std::optional<BlockUse> use_of(const void* pointer);

 private:
  struct Block {
    char* pointer;
    size_t bytes;
    std::set<std::pair<int, int64_t>> streams;  // device and id
    std::shared_ptr<Lifetime> lifetime;
    bool is_allocated;
  };
  using BlockPtr = std::shared_ptr<Block>;
  struct FreedBlock {
    BlockPtr block;
    std::vector<std::shared_ptr<Mark>> marks;
  };

  BlockPtr find(const void* pointer);
  BlockPtr take_new(size_t bytes);
  void check_limit(size_t bytes);
  void release(const BlockPtr& block);
  void release_passed();
  void return_cached();

  std::mutex mutex_;
  std::map<const char*, BlockPtr> blocks_;        // all, by address
  std::map<size_t, std::vector<BlockPtr>> free_;  // by size
  std::map<const char*, size_t> registered_;      // number of bytes by address
  std::vector<FreedBlock> waiting_;               // freed, but streams have not passed
  size_t limit_bytes_;
  size_t reserved_bytes_ = 0;
  at::HostStats stats_;
};

PinnedAllocator& pinned_allocator();

}  // namespace test_device
