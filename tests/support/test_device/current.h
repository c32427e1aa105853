// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace test_device {

// The calling thread's current device, and its current stream on each device.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device) noexcept;  // -1 changes nothing
c10::Stream current_stream(c10::DeviceIndex device);
void set_current_stream(const c10::Stream& stream);

c10::Stream stream_of(c10::DeviceIndex device, int64_t id);
c10::Device device_at(c10::DeviceIndex device);

// Whether all streams capture a graph: they only say so, and run what is queued.
bool is_capturing();
void set_capturing(bool is_capturing);

// Throws c10::Error where there is no such device.
void check_device(c10::DeviceIndex device);

}  // namespace test_device
