// SPDX-License-Identifier: Apache-2.0
#include "generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <mutex>

#include "current.h"
#include "device_memory.h"

namespace test_device {
namespace {

class DeviceGenerator final : public at::CPUGeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex device) {
    device_ = device_at(device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

std::array<at::Generator, kNumDevices> make_default_generators() {
  std::array<at::Generator, kNumDevices> generators;
  for (c10::DeviceIndex device = 0; device < kNumDevices; ++device) {
    generators[device] = at::make_generator<DeviceGenerator>(device);
  }
  return generators;
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* const generators = new std::array(make_default_generators());
  if (device < 0) device = current_device();
  check_device(device);
  return (*generators)[device];
}

at::Generator new_generator(c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  check_device(device);
  return at::make_generator<DeviceGenerator>(device);
}

void with_cpu_generator(at::Generator generator,
                        const std::function<void(const at::Generator&)>& kernel) {
  at::Generator on_cpu = at::detail::createCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  on_cpu.set_state(generator.get_state());
  kernel(on_cpu);
  generator.set_state(on_cpu.get_state());
}

}  // namespace test_device
