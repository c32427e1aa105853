// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace test_device {

inline constexpr int kNumDevices = 2;

// The memory of one device: the pages of one memfd, mapped at two addresses.
//
//   device pointer   base  + offset   no access: a host that reads or writes it gets SIGSEGV
//   alias            alias + offset   readable and writable: only kernels and copies use it
//
// Two mappings instead of one whose protection changes, because a change of protection would
// open the pages to every other thread too.
//
// Thread safety: the addresses are constant; take() and give_back() need the caller's lock.
class DeviceMemory final {
 public:
  static constexpr size_t kRangeBytes = size_t{8} << 30;  // of addresses; pages come when written

  DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  bool contains(const void* device_pointer) const;
  char* alias_of(const void* device_pointer) const;  // requires: contains(device_pointer)

  // A device pointer to `bytes` bytes that nobody else has, or none where the range is full.
  std::optional<char*> take(size_t bytes);
  void give_back(char* device_pointer, size_t bytes);  // joins neighbours

 private:
  char* base_ = nullptr;
  char* alias_ = nullptr;
  std::map<size_t, size_t> free_;  // from an offset to a number of bytes
};

// The memory of a device; its mappings exist from the first call on.
DeviceMemory& device_memory(int device);

// The alias of a pointer into any device's memory. A null pointer stays null.
// Throws c10::Error if the pointer belongs to no device.
void* alias_of(const void* device_pointer);

// The device that a pointer belongs to, or none.
std::optional<int> device_of(const void* pointer);

}  // namespace test_device
