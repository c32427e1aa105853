// SPDX-License-Identifier: Apache-2.0
// Pinned memory that the other ranks of the host can read.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "host_registration.h"
#include "smdist/engine.h"

namespace smdist::torch_binding {

// Slots in an engine's shared memory, which are pinned for a device when they are first needed. The
// engine sums what lies in them where it lies, and does not copy it once more for other ranks.
//
// Thread safety: none; PinnedSlots has a lock.
class SharedSlots final {
 public:
  // None.
  SharedSlots() = default;
  // memory: that of Engine::shared_memory(). slot_bytes: size of a slot. A slot begins on a page.
  SharedSlots(c10::Device device, SharedMemory memory, size_t slot_bytes);

  // Return another slot, a tensor of bytes; undefined if there are no more, or if the device could
  // not pin its memory, and then all further calls return none.
  at::Tensor next();
  // Return whether a tensor is one of these slots.
  bool contains(const at::Tensor& slot) const;
  // Return why the memory could not be pinned; empty if it could, or if there is none.
  const std::string& fault() const { return fault_; }

 private:
  size_t num_slots() const;

  c10::Device device_{c10::kCPU};
  SharedMemory memory_;
  size_t slot_bytes_ = 0;
  size_t stride_ = 1;  // distance of slots: whole pages
  const HostRegistration* registration_ = nullptr;
  size_t num_taken_ = 0;
  std::string fault_;
};

}  // namespace smdist::torch_binding
