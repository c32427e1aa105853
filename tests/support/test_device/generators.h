// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include <functional>

namespace test_device {

// The generator of a device that random kernels use where the caller passes none.
const at::Generator& default_generator(c10::DeviceIndex device);

// A new generator of a device. It draws the same numbers as a CPU generator with the same seed.
at::Generator new_generator(c10::DeviceIndex device);

// Calls `kernel` with a CPU generator in the state of `generator`, and keeps its state afterwards.
void with_cpu_generator(at::Generator generator,
                        const std::function<void(const at::Generator&)>& kernel);

}  // namespace test_device
