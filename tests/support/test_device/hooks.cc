// SPDX-License-Identifier: Apache-2.0
// What torch asks of the device besides streams: pinned memory, generators, resizing a storage.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>

#include "current.h"
#include "device_allocator.h"
#include "generators.h"
#include "pinned_allocator.h"
#include "scheduler.h"

namespace test_device {
namespace {

// Moves a storage to a block of another size, in the order of the current stream.
void resize_storage(const c10::Storage& storage, size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = device_allocator().allocate(bytes);
  const size_t kept = std::min<size_t>(bytes, storage.nbytes());
  if (kept > 0) {
    BlockUses uses;
    uses.add(data.get());
    uses.add(storage.data());
    auto copy = [uses, to = alias_of(data.get()), from = alias_of(storage.data()), kept] {
      uses.count_stale();
      std::memcpy(to, from, kept);
    };
    Scheduler::get().submit(current_stream(storage.device().index()), {"resize", std::move(copy)});
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override { Scheduler::get(); }

  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    check_device(device);
    return Scheduler::is_started();
  }

  c10::DeviceIndex deviceCount() const override { return kNumDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }

  void setCurrentDevice(c10::DeviceIndex device) const override {
    check_device(device);
    set_current_device(device);
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = current_device();
    setCurrentDevice(device);
    return before;
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }

  bool isPinnedPtr(const void* pointer) const override {
    return Scheduler::accepts_work() && pinned_allocator().contains(pointer);
  }

  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }

  c10::Device getDeviceFromPtr(void* pointer) const override {
    const auto device = device_of(pointer);
    TORCH_CHECK(device.has_value(), "testdev: ", pointer, " is no pointer of a device");
    return device_at(static_cast<c10::DeviceIndex>(*device));
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }

  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

const bool is_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &device_allocator());
  at::setHostAllocator(c10::DeviceType::PrivateUse1, &pinned_allocator());
  return true;
}();

}  // namespace
}  // namespace test_device
