// SPDX-License-Identifier: Apache-2.0
#include "current.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>

#include "device_memory.h"

namespace test_device {
namespace {

thread_local c10::DeviceIndex device_now = 0;
thread_local std::array<int64_t, kNumDevices> streams_now{};
std::atomic<bool> capturing{false};

}  // namespace

void check_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kNumDevices, "testdev: there is no device ",
              static_cast<int>(device), "; there are ", kNumDevices);
}

c10::DeviceIndex current_device() { return device_now; }

void set_current_device(c10::DeviceIndex device) noexcept {
  if (device >= 0) device_now = device;
}

c10::Device device_at(c10::DeviceIndex device) {
  return c10::Device(c10::DeviceType::PrivateUse1, device);
}

c10::Stream stream_of(c10::DeviceIndex device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(device), id);
}

c10::Stream current_stream(c10::DeviceIndex device) {
  if (device < 0) device = device_now;
  check_device(device);
  return stream_of(device, streams_now[device]);
}

bool is_capturing() { return capturing; }
void set_capturing(bool is_capturing) { capturing = is_capturing; }

void set_current_stream(const c10::Stream& stream) {
  check_device(stream.device_index());
  streams_now[stream.device_index()] = stream.id();
}

}  // namespace test_device
