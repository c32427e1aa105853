// SPDX-License-Identifier: Apache-2.0
#include "device_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace test_device {
namespace {

char* map_pages(int file, int protection) {
  void* address =
      mmap(nullptr, DeviceMemory::kRangeBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(address != MAP_FAILED,
              "testdev: mapping the device's memory failed: ", std::strerror(errno));
  return static_cast<char*>(address);
}

}  // namespace

DeviceMemory::DeviceMemory() {
  const int file = memfd_create("testdev", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0, "testdev: memfd_create failed: ", std::strerror(errno));
  TORCH_CHECK(ftruncate(file, kRangeBytes) == 0,
              "testdev: sizing the device's memory failed: ", std::strerror(errno));
  base_ = map_pages(file, PROT_NONE);
  alias_ = map_pages(file, PROT_READ | PROT_WRITE);
  close(file);
  free_.emplace(0, kRangeBytes);
}

bool DeviceMemory::contains(const void* device_pointer) const {
  const auto* pointer = static_cast<const char*>(device_pointer);
  return pointer >= base_ && pointer < base_ + kRangeBytes;
}

char* DeviceMemory::alias_of(const void* device_pointer) const {
  return alias_ + (static_cast<const char*>(device_pointer) - base_);
}

std::optional<char*> DeviceMemory::take(size_t bytes) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, length] = *range;
    if (length < bytes) continue;
    free_.erase(range);
    if (length > bytes) free_.emplace(offset + bytes, length - bytes);
    return base_ + offset;
  }
  return std::nullopt;
}

void DeviceMemory::give_back(char* device_pointer, size_t bytes) {
  auto range = free_.emplace(device_pointer - base_, bytes).first;
  if (const auto next = std::next(range);
      next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range == free_.begin()) return;
  if (const auto before = std::prev(range); before->first + before->second == range->first) {
    before->second += range->second;
    free_.erase(range);
  }
}

DeviceMemory& device_memory(int device) {
  // Never destroyed: tensors are freed until the process ends.
  static DeviceMemory* const memories = new DeviceMemory[kNumDevices];
  return memories[device];
}

std::optional<int> device_of(const void* pointer) {
  for (int device = 0; device < kNumDevices; ++device) {
    if (device_memory(device).contains(pointer)) return device;
  }
  return std::nullopt;
}

void* alias_of(const void* device_pointer) {
  if (device_pointer == nullptr) return nullptr;
  const std::optional<int> device = device_of(device_pointer);
  TORCH_CHECK(device.has_value(), "testdev: ", device_pointer, " is no pointer of a device");
  return device_memory(*device).alias_of(device_pointer);
}

}  // namespace test_device
