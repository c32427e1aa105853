// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "device_memory.h"
#include "lifetime.h"
#include "scheduler.h"

namespace test_device {

// The byte that fills memory which nobody has written: NaN in every floating type.
inline constexpr unsigned char kPoison = 0xFF;

// Hands out device memory by the rules of CUDA's caching allocator.
//
// A block belongs to the stream that was current when it was allocated. Freed, it can be handed
// out again at once, but only on that stream, whose order keeps users apart. A block that
// recordStream() named other streams for becomes free after these have passed. An allocation may
// take any free block of its stream, so it fills all of them with kPoison, in the order of the
// stream: whoever uses one too late reads NaN and is counted. Until then the memory stays as it
// was, as on a GPU, where another stream may still use it that the program orders before the
// allocation. Fresh memory is filled too.
//
// Thread safety: every function may be called from any thread.
class CachingAllocator final : public c10::DeviceAllocator {
 public:
  CachingAllocator();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;

  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  void free(void* pointer);
  void set_limit(int device, size_t bytes);  // of all blocks, handed out or cached
  std::optional<BlockUse> use_of(const void* pointer);

 private:
  struct Block {
    int device;
    int64_t stream;
    char* pointer;
    size_t bytes;
    size_t requested_bytes;
    std::set<int64_t> other_streams;
    std::shared_ptr<Lifetime> lifetime;
    bool is_allocated;
  };
  using BlockPtr = std::shared_ptr<Block>;
  struct FreedBlock {
    BlockPtr block;
    std::vector<std::shared_ptr<Mark>> marks;
  };
  struct Pool {
    std::map<const char*, BlockPtr> blocks;                            // all, by address
    std::map<std::pair<int64_t, size_t>, std::vector<BlockPtr>> free;  // by stream and size
    std::vector<FreedBlock> waiting;                    // freed, but other streams have not passed
    std::map<int64_t, std::vector<BlockPtr>> unfilled;  // free, by stream, not filled yet
    size_t reserved_bytes = 0;
    size_t limit_bytes;
    c10::CachingDeviceAllocator::DeviceStats stats;
  };

  BlockPtr take_free(Pool& pool, int64_t stream, size_t bytes);
  BlockPtr take_new(Pool& pool, int device, int64_t stream, size_t bytes);
  void release(Pool& pool, const BlockPtr& block);
  void release_passed(Pool& pool);
  void fill_free(Pool& pool, int64_t stream);
  void return_cached(Pool& pool, int device);
  void poison(const BlockPtr& block);
  BlockPtr find(Pool& pool, const void* pointer);
  [[noreturn]] void throw_out_of_memory(const Pool& pool, int device, size_t bytes);

  std::mutex mutex_;         // held while the cache is freed, as by CUDA's allocator
  std::mutex blocks_mutex_;  // also held to change Pool::blocks; copies need this one alone
  std::array<Pool, kNumDevices> pools_;
};

CachingAllocator& device_allocator();

}  // namespace test_device
