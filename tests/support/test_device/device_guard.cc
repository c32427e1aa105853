// SPDX-License-Identifier: Apache-2.0
// What torch calls for streams, events and the current device.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <memory>

#include "current.h"
#include "device_allocator.h"
#include "scheduler.h"

namespace test_device {
namespace {

// Mark of an event's last recording, to which the pointer of the event points.
struct Event {
  std::shared_ptr<Mark> mark;
  bool is_timed;
};

class DeviceGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumDevices; }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Device getDevice() const override { return device_at(current_device()); }

  void setDevice(c10::Device device) const override {
    check_device(device.index());
    set_current_device(device.index());
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_current_device(device.index());
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device.has_index()) setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool has_high_priority) const override {
    const c10::DeviceIndex index = index_of(device);
    return stream_of(index, Scheduler::get().pool_stream(index, has_high_priority));
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const c10::DeviceIndex index = index_of(device);
    return stream_of(index, Scheduler::get().new_stream(index, priority < 0));
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    set_current_stream(stream);
    return before;
  }

  // The stream's id, which is not zero for the streams of the pool. Nothing points to a stream.
  void* getStreamNativeHandle(c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }

  bool queryStream(const c10::Stream& stream) const override {
    return Scheduler::get().is_idle(stream);
  }

  bool isStreamCapturing(const c10::Stream&) const override { return is_capturing(); }

  void synchronizeStream(const c10::Stream& stream) const override {
    Scheduler::get().synchronize(stream);
  }

  void synchronizeDevice(c10::DeviceIndex device) const override {
    check_device(device);
    Scheduler::get().synchronize_device(device);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device,
              c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "testdev: an event of device ",
                static_cast<int>(device), " was recorded on a stream of device ",
                static_cast<int>(stream.device_index()));
    auto mark = Scheduler::get().record(stream);
    if (*event == nullptr) *event = new Event{nullptr, flag == c10::EventFlag::BACKEND_DEFAULT};
    static_cast<Event*>(*event)->mark = std::move(mark);
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) Scheduler::get().block(stream, static_cast<Event*>(event)->mark);
  }

  bool queryEvent(void* event) const override {
    return event == nullptr || Scheduler::get().is_done(*static_cast<Event*>(event)->mark);
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) Scheduler::get().wait(static_cast<Event*>(event)->mark);
  }

  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "testdev: both events must be recorded");
    const auto* begin = static_cast<Event*>(first);
    const auto* end = static_cast<Event*>(second);
    TORCH_CHECK(begin->is_timed && end->is_timed,
                "testdev: both events must be created with enable_timing=True");
    return Scheduler::get().milliseconds_between(*begin->mark, *end->mark);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
    check_device(index);
    return index;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard);

}  // namespace
}  // namespace test_device
