// SPDX-License-Identifier: Apache-2.0
// Registration of host memory with a device: the device then copies as from pinned memory.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

namespace smdist::torch_binding {

// Registration of host memory with one type of device. c10 has none, so each type of device
// registers its own.
//
// Thread safety: const methods may be called from any thread.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;

  // Pin memory of the host, whole pages, for copies of all devices of this type. Throws c10::Error
  // if the device refuses it.
  virtual void pin(c10::Device device, void* memory, size_t bytes) const = 0;

  // End the pinning of memory. Requires: no copy uses it any more.
  virtual void unpin(c10::Device device, void* memory) const noexcept = 0;
};

// Register the registration of a type of device, which may not be destroyed.
void register_host_registration(c10::DeviceType type, const HostRegistration* registration);

// Return the registration of a type of device, or null if it has none; then `missing` says why.
const HostRegistration* find_host_registration(c10::DeviceType type, std::string* missing);

}  // namespace smdist::torch_binding
