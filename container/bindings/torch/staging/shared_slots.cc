// SPDX-License-Identifier: Apache-2.0
#include "shared_slots.h"

#include <ATen/ops/from_blob.h>

#include <utility>

namespace smdist::torch_binding {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

SharedSlots::SharedSlots(c10::Device device, SharedMemory memory, size_t slot_bytes)
    : device_(device),
      memory_(std::move(memory)),
      slot_bytes_(slot_bytes),
      stride_((slot_bytes + kPageBytes - 1) / kPageBytes * kPageBytes) {
  if (memory_.span.bytes > 0) registration_ = find_host_registration(device.type(), &fault_);
}

size_t SharedSlots::num_slots() const { return memory_.span.bytes / stride_; }

at::Tensor SharedSlots::next() {
  if (registration_ == nullptr || !fault_.empty() || num_taken_ == num_slots()) return {};
  auto* const slot = static_cast<char*>(memory_.span.data) + num_taken_ * stride_;
  try {
    registration_->pin(device_, slot, stride_);
  } catch (const c10::Error& error) {
    fault_ = error.what_without_backtrace();
    return {};
  }
  ++num_taken_;
  const auto release = [owner = memory_.owner, registration = registration_,
                        device = device_](void* memory) { registration->unpin(device, memory); };
  return at::from_blob(slot, {static_cast<int64_t>(slot_bytes_)}, release,
                       at::TensorOptions(at::kByte));
}

bool SharedSlots::contains(const at::Tensor& slot) const {
  const auto begin = reinterpret_cast<uintptr_t>(memory_.span.data);
  return reinterpret_cast<uintptr_t>(slot.data_ptr()) - begin < memory_.span.bytes;
}

}  // namespace smdist::torch_binding
