// SPDX-License-Identifier: Apache-2.0
#include "pinned_slots.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>

#include <utility>

namespace smdist::torch_binding {
namespace {

// Time between two looks at the events of released slots, while a thread waits for one.
constexpr auto kEventPoll = std::chrono::microseconds(50);

bool is_complete(const CopyStreams::EventPtr& event) { return !event || event->query(); }

}  // namespace

at::Tensor allocate_pinned(c10::DeviceType device, size_t bytes) {
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(device);
  return at::Tensor(at::detail::empty_generic(
      {static_cast<int64_t>(bytes)}, hooks.getPinnedMemoryAllocator(),
      c10::DispatchKeySet(c10::DispatchKey::CPU), at::kByte, std::nullopt));
}

// Frees the slots whose copies are complete. Shared memory that a copy may still use remains mapped
// and pinned until the process ends; all other memory is the allocator's, which waits for copies.
PinnedSlots::~PinnedSlots() {
  for (Released& each : released_) {
    if (!shared_.contains(each.slot)) continue;
    try {
      if (is_complete(each.after)) continue;
    } catch (const c10::Error&) {
      // The device has failed.
    }
    discarded_.push_back(std::move(each.slot));
  }
  for (at::Tensor& slot : discarded_) new at::Tensor(std::move(slot));
}

std::string PinnedSlots::share(SharedSlots shared) {
  const std::lock_guard<std::mutex> lock(mutex_);
  shared_ = std::move(shared);
  at::Tensor first = shared_.next();
  if (!first.defined()) return shared_.fault();
  ++num_slots_;
  released_.push_back({std::move(first), nullptr});
  return {};
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
    if (slot.defined() || num_slots_ >= max_slots_ || is_stopped_) return slot;
  }
  try {
    return acquire_additional();
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (num_slots_ == 0) throw;
    max_slots_ = num_slots_;  // copies go on, only slower
    return {};
  }
}

void PinnedSlots::reserve() {
  std::vector<at::Tensor> slots;
  try {
    while (true) {
      slots.push_back(try_acquire());
      if (!slots.back().defined()) break;
    }
    slots.pop_back();
  } catch (...) {
    // Not one slot can be allocated: the first piece that needs one raises the error.
  }
  for (at::Tensor& slot : slots) release(std::move(slot), nullptr);
}

// Returns a slot beyond the limit. It is freed when slots are released.
at::Tensor PinnedSlots::acquire_additional() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_slots_;
    at::Tensor slot = shared_.next();
    if (slot.defined()) return slot;
  }
  try {
    return allocate_pinned(device_, slot_bytes_);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    --num_slots_;
    throw;
  }
}

at::Tensor PinnedSlots::acquire(std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + patience;
  bool has_memory = true;
  while (true) {
    at::Tensor slot = try_acquire();
    if (slot.defined()) return slot;
    if (has_memory && Clock::now() >= end) {
      try {
        return acquire_additional();
      } catch (...) {
        has_memory = false;
      }
    }
    std::unique_lock<std::mutex> lock(mutex_);
    if (is_stopped_) return {};
    const auto has_changed = [this] { return !released_.empty() || is_stopped_; };
    if (!released_.empty()) {
      changed_.wait_for(lock, kEventPoll);  // for the oldest event
    } else if (has_memory) {
      changed_.wait_until(lock, end, has_changed);
    } else {
      changed_.wait(lock, has_changed);
    }
  }
}

void PinnedSlots::release(at::Tensor slot, CopyStreams::EventPtr after) {
  if (static_cast<size_t>(slot.numel()) != slot_bytes_) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (num_slots_ > max_slots_ && !shared_.contains(slot)) {
      --num_slots_;
    } else {
      released_.push_back({std::move(slot), std::move(after)});
    }
  }
  changed_.notify_all();
}

void PinnedSlots::discard(at::Tensor slot) {
  if (!slot.defined() || static_cast<size_t>(slot.numel()) != slot_bytes_) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --num_slots_;
    if (shared_.contains(slot)) discarded_.push_back(std::move(slot));
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
