// SPDX-License-Identifier: Apache-2.0
#include "device_allocator.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "current.h"

namespace test_device {
namespace {

constexpr size_t kGranularityBytes = 512;
constexpr size_t kDefaultLimitBytes = size_t{1} << 30;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

size_t limit_from_environment() {
  const char* text = std::getenv("TESTDEV_MEMORY_BYTES");
  return text == nullptr ? kDefaultLimitBytes : std::strtoull(text, nullptr, 10);
}

void free_block(void* pointer) { device_allocator().free(pointer); }

}  // namespace

CachingAllocator::CachingAllocator() {
  for (Pool& pool : pools_) pool.limit_bytes = limit_from_environment();
}

c10::DeleterFnPtr CachingAllocator::raw_deleter() const { return &free_block; }

bool CachingAllocator::initialized() { return Scheduler::is_started(); }

c10::DataPtr CachingAllocator::allocate(size_t requested_bytes) {
  Scheduler::get();
  const int device = current_device();
  if (requested_bytes == 0) return {nullptr, nullptr, &free_block, device_at(device)};
  const int64_t stream = current_stream(device).id();
  const size_t bytes =
      (requested_bytes + kGranularityBytes - 1) / kGranularityBytes * kGranularityBytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  Pool& pool = pools_[device];
  release_passed(pool);
  fill_free(pool, stream);
  BlockPtr block = take_free(pool, stream, bytes);
  if (!block) block = take_new(pool, device, stream, bytes);
  if (!block) {
    return_cached(pool, device);
    block = take_new(pool, device, stream, bytes);
  }
  if (!block) throw_out_of_memory(pool, device, bytes);
  block->is_allocated = true;
  block->requested_bytes = requested_bytes;
  ++block->lifetime->allocations;
  pool.stats.allocation[kAll].increase(1);
  pool.stats.allocated_bytes[kAll].increase(block->bytes);
  pool.stats.active_bytes[kAll].increase(block->bytes);
  pool.stats.requested_bytes[kAll].increase(requested_bytes);
  return {block->pointer, block->pointer, &free_block, device_at(device)};
}

// The smallest free block of the stream that wastes at most half; of equal ones the latest.
CachingAllocator::BlockPtr CachingAllocator::take_free(Pool& pool, int64_t stream, size_t bytes) {
  const auto found = pool.free.lower_bound({stream, bytes});
  if (found == pool.free.end() || found->first.first != stream) return nullptr;
  if (found->first.second > 2 * bytes) return nullptr;
  BlockPtr block = found->second.back();
  found->second.pop_back();
  if (found->second.empty()) pool.free.erase(found);
  return block;
}

CachingAllocator::BlockPtr CachingAllocator::take_new(Pool& pool, int device, int64_t stream,
                                                      size_t bytes) {
  if (bytes > pool.limit_bytes || pool.reserved_bytes > pool.limit_bytes - bytes) return nullptr;
  const std::optional<char*> pointer = device_memory(device).take(bytes);
  if (!pointer) return nullptr;
  auto block = std::make_shared<Block>(
      Block{device, stream, *pointer, bytes, 0, {}, std::make_shared<Lifetime>(), false});
  {
    const std::lock_guard<std::mutex> lock(blocks_mutex_);
    pool.blocks.emplace(*pointer, block);
  }
  pool.reserved_bytes += bytes;
  pool.stats.segment[kAll].increase(1);
  pool.stats.reserved_bytes[kAll].increase(bytes);
  ++pool.stats.num_device_alloc;
  poison(block);
  return block;
}

void CachingAllocator::poison(const BlockPtr& block) {
  auto fill = [block, allocation = block->lifetime->allocations.load()] {
    std::memset(alias_of(block->pointer), kPoison, block->bytes);
    block->lifetime->ended = allocation;
  };
  Scheduler::get().submit(stream_of(block->device, block->stream),
                          {"poison", std::move(fill), {}, true});
}

void CachingAllocator::free(void* pointer) {
  if (pointer == nullptr || !Scheduler::accepts_work()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<int> device = device_of(pointer);
  TORCH_CHECK(device.has_value(), "testdev: ", pointer, " is no pointer of a device");
  Pool& pool = pools_[*device];
  const BlockPtr block = pool.blocks.at(static_cast<const char*>(pointer));
  TORCH_CHECK(block->is_allocated, "testdev: ", pointer, " was freed twice");
  block->is_allocated = false;
  pool.stats.allocation[kAll].decrease(1);
  pool.stats.allocated_bytes[kAll].decrease(block->bytes);
  pool.stats.requested_bytes[kAll].decrease(block->requested_bytes);
  if (block->other_streams.empty()) {
    release(pool, block);
  } else {
    FreedBlock freed{block, {}};
    for (const int64_t stream : block->other_streams) {
      freed.marks.push_back(Scheduler::get().record(stream_of(block->device, stream)));
    }
    pool.waiting.push_back(std::move(freed));
  }
  release_passed(pool);
}

void CachingAllocator::release(Pool& pool, const BlockPtr& block) {
  block->other_streams.clear();
  pool.unfilled[block->stream].push_back(block);
  pool.free[{block->stream, block->bytes}].push_back(block);
  pool.stats.active_bytes[kAll].decrease(block->bytes);
}

void CachingAllocator::release_passed(Pool& pool) {
  std::vector<FreedBlock> still_waiting;
  for (FreedBlock& freed : pool.waiting) {
    bool has_passed = true;
    for (const auto& mark : freed.marks) has_passed &= Scheduler::get().has_passed(*mark);
    if (has_passed) {
      release(pool, freed.block);
    } else {
      still_waiting.push_back(std::move(freed));
    }
  }
  pool.waiting = std::move(still_waiting);
}

// Fills the free blocks of a stream, one of which may be handed out on it now.
void CachingAllocator::fill_free(Pool& pool, int64_t stream) {
  for (const BlockPtr& block : std::exchange(pool.unfilled[stream], {})) poison(block);
}

// Waits for all streams, so that no stream uses what is cached, and gives it back.
void CachingAllocator::return_cached(Pool& pool, int device) {
  Scheduler::get().drain_device(device);
  release_passed(pool);
  Scheduler::get().drain_device(device);
  for (const auto& [key, blocks] : pool.free) {
    for (const BlockPtr& block : blocks) {
      device_memory(device).give_back(block->pointer, block->bytes);
      const std::lock_guard<std::mutex> lock(blocks_mutex_);
      pool.blocks.erase(block->pointer);
      pool.reserved_bytes -= block->bytes;
      pool.stats.segment[kAll].decrease(1);
      pool.stats.reserved_bytes[kAll].decrease(block->bytes);
      ++pool.stats.num_device_free;
    }
  }
  pool.free.clear();
  pool.unfilled.clear();
  ++pool.stats.num_sync_all_streams;
}

void CachingAllocator::throw_out_of_memory(const Pool& pool, int device, size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "testdev out of memory: device ", device, " has ",
                   pool.limit_bytes, " bytes, ", pool.reserved_bytes, " are in use, and ", bytes,
                   " more were asked for");
}

void CachingAllocator::emptyCache(c10::MempoolId_t pool) {
  TORCH_CHECK(pool == c10::MempoolId_t(0, 0), "testdev: there are no memory pools");
  if (!Scheduler::is_started()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int device = 0; device < kNumDevices; ++device) return_cached(pools_[device], device);
}

CachingAllocator::BlockPtr CachingAllocator::find(Pool& pool, const void* pointer) {
  auto next = pool.blocks.upper_bound(static_cast<const char*>(pointer));
  if (next == pool.blocks.begin()) return nullptr;
  BlockPtr block = std::prev(next)->second;
  return static_cast<const char*>(pointer) < block->pointer + block->bytes ? block : nullptr;
}

void CachingAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  if (data.get() == nullptr) return;
  const std::optional<int> device = device_of(data.get());
  TORCH_CHECK(device.has_value(), "testdev: ", data.get(), " is no pointer of a device");
  TORCH_CHECK(stream.device_index() == *device, "testdev: a block of device ", *device,
              " was recorded on a stream of device ", static_cast<int>(stream.device_index()));
  const std::lock_guard<std::mutex> lock(mutex_);
  const BlockPtr block = find(pools_[*device], data.get());
  TORCH_CHECK(block && block->is_allocated, "testdev: ", data.get(), " is not allocated");
  if (block->stream != stream.id()) block->other_streams.insert(stream.id());
}

std::optional<BlockUse> CachingAllocator::use_of(const void* pointer) {
  const std::optional<int> device = device_of(pointer);
  if (!device) return std::nullopt;
  const std::lock_guard<std::mutex> lock(blocks_mutex_);
  const BlockPtr block = find(pools_[*device], pointer);
  if (!block) return std::nullopt;
  return BlockUse(block->lifetime);
}

void CachingAllocator::set_limit(int device, size_t bytes) {
  TORCH_CHECK(bytes <= DeviceMemory::kRangeBytes, "testdev: a device has at most ",
              DeviceMemory::kRangeBytes, " bytes");
  const std::lock_guard<std::mutex> lock(mutex_);
  pools_[device].limit_bytes = bytes;
}

c10::CachingDeviceAllocator::DeviceStats CachingAllocator::getDeviceStats(c10::DeviceIndex device) {
  check_device(device);
  const std::lock_guard<std::mutex> lock(mutex_);
  return pools_[device].stats;
}

void CachingAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  check_device(device);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& stats = pools_[device].stats;
  for (auto* stat : {&stats.allocation, &stats.segment, &stats.allocated_bytes,
                     &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    (*stat)[kAll].reset_accumulated();
  }
}

void CachingAllocator::resetPeakStats(c10::DeviceIndex device) {
  check_device(device);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& stats = pools_[device].stats;
  for (auto* stat : {&stats.allocation, &stats.segment, &stats.allocated_bytes,
                     &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    (*stat)[kAll].reset_peak();
  }
}

std::pair<size_t, size_t> CachingAllocator::getMemoryInfo(c10::DeviceIndex device) {
  check_device(device);
  const std::lock_guard<std::mutex> lock(mutex_);
  const Pool& pool = pools_[device];
  const size_t used = std::min(pool.reserved_bytes, pool.limit_bytes);
  return {pool.limit_bytes - used, pool.limit_bytes};
}

void CachingAllocator::copy_data(void* destination, const void* source, size_t bytes) const {
  const auto device = static_cast<c10::DeviceIndex>(device_of(destination).value());
  auto copy = [to = alias_of(destination), from = alias_of(source), bytes] {
    std::memcpy(to, from, bytes);
  };
  Scheduler::get().submit(current_stream(device), {"copy_data", std::move(copy)});
}

CachingAllocator& device_allocator() {
  static CachingAllocator* const allocator =
      new CachingAllocator;  // never destroyed, as tensors live long
  return *allocator;
}

}  // namespace test_device
