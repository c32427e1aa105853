// SPDX-License-Identifier: Apache-2.0
#include "pinned_slots.h"

#include <ATen/Context.h>

#include <chrono>
#include <utility>

namespace smdist::torch_binding {
namespace {

// Time between two looks at the events of released slots, while a thread waits for one.
constexpr auto kPoll = std::chrono::microseconds(50);

bool is_complete(const CopyStreams::EventPtr& event) { return !event || event->query(); }

}  // namespace

at::Tensor PinnedSlots::allocate(size_t bytes) const {
  auto* allocator = at::globalContext().getAcceleratorHooksInterface(device_).getPinnedMemoryAllocator();
  const auto size = static_cast<int64_t>(bytes);
  auto memory = std::make_shared<c10::DataPtr>(allocator->allocate(bytes));
  return at::from_blob(
      memory->get(), {size}, [memory](void*) mutable { memory.reset(); }, at::kByte);
}

// Returns a slot whose event is complete. Requires: mutex_ is held.
at::Tensor PinnedSlots::take_complete() {
  for (auto each = released_.begin(); each != released_.end(); ++each) {
    if (!is_complete(each->after)) continue;
    at::Tensor slot = std::move(each->slot);
    released_.erase(each);
    return slot;
  }
  return {};
}

at::Tensor PinnedSlots::try_acquire() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    at::Tensor slot = take_complete();
    if (slot.defined() || num_slots_ == max_slots_ || is_stopped_) return slot;
    ++num_slots_;
  }
  try {
    return allocate(slot_bytes_);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    --num_slots_;
    if (num_slots_ == 0) throw;  // with at least one slot, copies go on, only slower
    return {};
  }
}

at::Tensor PinnedSlots::acquire() {
  while (true) {
    at::Tensor slot = try_acquire();
    std::unique_lock<std::mutex> lock(mutex_);
    if (slot.defined() || is_stopped_) return slot;
    if (released_.empty()) {
      changed_.wait(lock, [this] { return !released_.empty() || is_stopped_; });
    } else {
      changed_.wait_for(lock, kPoll);  // for the oldest event
    }
  }
}

void PinnedSlots::release(at::Tensor slot, CopyStreams::EventPtr after) {
  if (static_cast<size_t>(slot.numel()) != slot_bytes_) {
    if (after) after->synchronize();  // the allocator does not know the copies of from_blob()
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    released_.push_back({std::move(slot), std::move(after)});
  }
  changed_.notify_all();
}

void PinnedSlots::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace smdist::torch_binding
