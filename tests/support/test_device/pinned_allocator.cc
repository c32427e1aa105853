// SPDX-License-Identifier: Apache-2.0
#include "pinned_allocator.h"

#include <c10/util/Exception.h>

#include <bit>
#include <cstdlib>
#include <cstring>

#include "current.h"
#include "device_allocator.h"

namespace test_device {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kDefaultLimitBytes = size_t{1} << 30;
constexpr int kMemoryAllocationFailure = 2;  // as CUDA numbers it

size_t limit_from_environment() {
  const char* text = std::getenv("TESTDEV_PINNED_BYTES");
  return text == nullptr ? kDefaultLimitBytes : std::strtoull(text, nullptr, 10);
}

void free_block(void* pointer) { pinned_allocator().free(pointer); }

}  // namespace

PinnedAllocator::PinnedAllocator() : limit_bytes_(limit_from_environment()) {}

c10::DeleterFnPtr PinnedAllocator::raw_deleter() const { return &free_block; }

void PinnedAllocator::copy_data(void* destination, const void* source, size_t bytes) const {
  std::memcpy(destination, source, bytes);
}

c10::DataPtr PinnedAllocator::allocate(size_t requested_bytes) {
  Scheduler::get();
  if (requested_bytes == 0) return {nullptr, nullptr, &free_block, c10::DeviceType::CPU};
  const size_t bytes = std::bit_ceil(std::max(requested_bytes, size_t{512}));
  const std::lock_guard<std::mutex> lock(mutex_);
  release_passed();
  BlockPtr block;
  if (const auto found = free_.find(bytes); found != free_.end() && !found->second.empty()) {
    block = found->second.back();
    found->second.pop_back();
  } else {
    block = take_new(bytes);
  }
  block->is_allocated = true;
  ++block->lifetime->allocations;
  stats_.active_requests.increase(1);
  stats_.active_bytes.increase(bytes);
  return {block->pointer, block->pointer, &free_block, c10::DeviceType::CPU};
}

void PinnedAllocator::check_limit(size_t bytes) {
  if (bytes > limit_bytes_ || reserved_bytes_ > limit_bytes_ - bytes) return_cached();
  if (bytes > limit_bytes_ || reserved_bytes_ > limit_bytes_ - bytes) {
    throw c10::AcceleratorError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, kMemoryAllocationFailure,
        c10::str("testdev error: out of pinned memory: ", limit_bytes_, " bytes may be pinned, ",
                 reserved_bytes_, " are in use, and ", bytes, " more were asked for"));
  }
}

void PinnedAllocator::add_registered(void* memory, size_t bytes) {
  Scheduler::get();
  const std::lock_guard<std::mutex> lock(mutex_);
  check_limit(bytes);
  const bool is_new = registered_.emplace(static_cast<const char*>(memory), bytes).second;
  TORCH_CHECK(is_new, "testdev: ", memory, " is pinned already");
  reserved_bytes_ += bytes;
}

void PinnedAllocator::remove_registered(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = registered_.find(static_cast<const char*>(memory));
  if (found == registered_.end()) return;
  reserved_bytes_ -= found->second;
  registered_.erase(found);
}

size_t PinnedAllocator::registered_bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const auto& [_, each] : registered_) bytes += each;
  return bytes;
}

PinnedAllocator::BlockPtr PinnedAllocator::take_new(size_t bytes) {
  check_limit(bytes);
  const size_t pages_bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* pointer = static_cast<char*>(std::aligned_alloc(kPageBytes, pages_bytes));
  TORCH_CHECK(pointer != nullptr, "testdev: the host is out of memory");
  std::memset(pointer, kPoison, bytes);
  auto block =
      std::make_shared<Block>(Block{pointer, bytes, {}, std::make_shared<Lifetime>(), false});
  blocks_.emplace(pointer, block);
  reserved_bytes_ += bytes;
  stats_.allocations.increase(1);
  stats_.allocated_bytes.increase(bytes);
  ++stats_.num_host_alloc;
  return block;
}

PinnedAllocator::BlockPtr PinnedAllocator::find(const void* pointer) {
  auto next = blocks_.upper_bound(static_cast<const char*>(pointer));
  if (next == blocks_.begin()) return nullptr;
  BlockPtr block = std::prev(next)->second;
  return static_cast<const char*>(pointer) < block->pointer + block->bytes ? block : nullptr;
}

void PinnedAllocator::free(void* pointer) {
  if (pointer == nullptr || !Scheduler::accepts_work()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const BlockPtr block = blocks_.at(static_cast<const char*>(pointer));
  TORCH_CHECK(block->is_allocated, "testdev: ", pointer, " was freed twice");
  block->is_allocated = false;
  stats_.active_requests.decrease(1);
  stats_.active_bytes.decrease(block->bytes);
  FreedBlock freed{block, {}};
  for (const auto& [device, stream] : block->streams) {
    freed.marks.push_back(
        Scheduler::get().record(stream_of(static_cast<c10::DeviceIndex>(device), stream)));
  }
  waiting_.push_back(std::move(freed));
  release_passed();
}

void PinnedAllocator::release(const BlockPtr& block) {
  block->streams.clear();
  block->lifetime->ended = block->lifetime->allocations.load();
  std::memset(block->pointer, kPoison, block->bytes);
  free_[block->bytes].push_back(block);
}

void PinnedAllocator::release_passed() {
  std::vector<FreedBlock> still_waiting;
  for (FreedBlock& freed : waiting_) {
    bool has_passed = true;
    for (const auto& mark : freed.marks) has_passed &= Scheduler::get().has_passed(*mark);
    if (has_passed) {
      release(freed.block);
    } else {
      still_waiting.push_back(std::move(freed));
    }
  }
  waiting_ = std::move(still_waiting);
}

// A late copy through a bare pointer would then reach memory of somebody else, as on a real device.
void PinnedAllocator::return_cached() {
  for (int device = 0; device < kNumDevices; ++device) Scheduler::get().drain_device(device);
  release_passed();
  for (const auto& [bytes, blocks] : free_) {
    for (const BlockPtr& block : blocks) {
      blocks_.erase(block->pointer);
      std::free(block->pointer);
      reserved_bytes_ -= bytes;
      stats_.allocations.decrease(1);
      stats_.allocated_bytes.decrease(bytes);
      ++stats_.num_host_free;
    }
  }
  free_.clear();
}

void PinnedAllocator::empty_cache() {
  if (!Scheduler::is_started()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  return_cached();
}

bool PinnedAllocator::record_event(void* pointer, void* context, c10::Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (void* base : {context, pointer}) {
    const auto found = blocks_.find(static_cast<const char*>(base));
    if (found == blocks_.end() || !found->second->is_allocated) continue;
    found->second->streams.emplace(stream.device_index(), stream.id());
    return true;
  }
  return false;
}

bool PinnedAllocator::contains(const void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (find(pointer) != nullptr) return true;
  const auto* const at = static_cast<const char*>(pointer);
  const auto next = registered_.upper_bound(at);
  if (next == registered_.begin()) return false;
  return at < std::prev(next)->first + std::prev(next)->second;
}

void PinnedAllocator::set_limit(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  limit_bytes_ = bytes;
}

std::optional<BlockUse> PinnedAllocator::use_of(const void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const BlockPtr block = find(pointer);
  if (!block) return std::nullopt;
  return BlockUse(block->lifetime);
}

at::HostStats PinnedAllocator::get_stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void PinnedAllocator::reset_accumulated_stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (at::Stat* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
                         &stats_.allocated_bytes}) {
    stat->reset_accumulated();
  }
}

void PinnedAllocator::reset_peak_stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (at::Stat* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
                         &stats_.allocated_bytes}) {
    stat->reset_peak();
  }
}

PinnedAllocator& pinned_allocator() {
  static PinnedAllocator* const allocator =
      new PinnedAllocator;  // never destroyed, as tensors live long
  return *allocator;
}

}  // namespace test_device
