// SPDX-License-Identifier: Apache-2.0
// Bounded pool of pinned host memory, through which tensors of devices are staged.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "copy_streams.h"
#include "shared_slots.h"

namespace smdist::torch_binding {

// Return pinned memory, a tensor of bytes that the allocator knows: freed memory is not used before
// the copies end that use it. Throws an error if no memory can be pinned.
at::Tensor allocate_pinned(c10::DeviceType device, size_t bytes);

// Pinned memory in pieces of equal size (slots), which are allocated when they are first needed and
// then kept: first those in memory that other ranks can read. A slot that is released with an event
// is used again when the event is complete. If no more memory can be pinned, the pool stays as
// small as it is then.
//
// Thread safety: all methods may be called from any thread.
class PinnedSlots final {
 public:
  // slot_bytes: size of a slot. max_slots: largest number of slots, at least 1.
  PinnedSlots(c10::DeviceType device, size_t slot_bytes, size_t max_slots)
      : device_(device), slot_bytes_(slot_bytes), max_slots_(max_slots) {}
  ~PinnedSlots();
  PinnedSlots(const PinnedSlots&) = delete;
  PinnedSlots& operator=(const PinnedSlots&) = delete;

  size_t slot_bytes() const { return slot_bytes_; }

  // Use these slots before others. Call once, before the first slot is used. Returns why none of
  // them can be used; empty if one can, or if there are none.
  std::string share(SharedSlots shared);

  // Return a slot, a tensor of bytes; undefined if none is free now.
  at::Tensor try_acquire();
  // Return a slot as soon as one is free, or an additional one after `patience`; undefined after
  // stop(). Requires: other threads release slots.
  at::Tensor acquire(std::chrono::milliseconds patience);
  // Allocate the slots now, as many as there is memory for, so that later calls allocate none.
  void reserve();

  // Give memory back. It is used again when `after` is complete, which may be null. Memory that is
  // no slot is freed instead.
  void release(at::Tensor slot, CopyStreams::EventPtr after);
  // Give memory back after a failure. It is freed when the copies are complete that use it, or kept
  // and never used again if other ranks can read it.
  void discard(at::Tensor slot);

  // End all waits in acquire().
  void stop();

 private:
  struct Released {
    at::Tensor slot;
    CopyStreams::EventPtr after;
  };
  at::Tensor take_complete();
  at::Tensor acquire_additional();

  const c10::DeviceType device_;
  const size_t slot_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t max_slots_;  // guarded by mutex_, as are the next five
  SharedSlots shared_;
  std::deque<Released> released_;
  std::vector<at::Tensor> discarded_;  // shared slots
  size_t num_slots_ = 0;
  bool is_stopped_ = false;
};

}  // namespace smdist::torch_binding
