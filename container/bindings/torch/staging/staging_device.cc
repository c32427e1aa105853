// SPDX-License-Identifier: Apache-2.0
#include "staging_device.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>
#include <utility>

namespace smdist::torch_binding {
namespace {

using Clock = std::chrono::steady_clock;

// Longest time that two copies of a few bytes take on a device that works.
constexpr std::chrono::seconds kStreamPatience{5};
constexpr std::chrono::microseconds kStreamPoll{50};

// Copies a byte to the host and back while another stream waits for a signal, which is set behind
// the copies. Returns whether the stream goes on.
bool stream_goes_on(const CopyStreams& streams, const StreamSignals& signals,
                    const StreamSignal& signal) {
  const c10::Device device = streams.device();
  const c10::StreamGuard of_streams(streams.to_device());  // the caller's stream may be busy
  const at::Tensor on_device = at::empty({1}, at::TensorOptions(at::kByte).device(device));
  const at::Tensor on_host = allocate_pinned(device.type(), 1);
  const CopyStreams::EventPtr now = record_event(streams.to_device());
  const c10::Stream waiting =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  signals.wait(waiting, signal);
  const CopyStreams::EventPtr passed = record_event(waiting);
  const auto to_host = streams.copy_to_host({{on_host, on_device}}, now);
  const auto to_device = streams.copy_to_device({{on_device, on_host}}, to_host);
  signals.set_behind(streams.to_device(), signal);
  for (const Clock::time_point end = Clock::now() + kStreamPatience; Clock::now() < end;) {
    if (to_device->query() && passed->query()) return true;
    std::this_thread::sleep_for(kStreamPoll);
  }
  return false;
}

// Returns whether copies in both directions go on while another stream waits. Where a device has
// fewer queues than streams, streams share queues, and a stream that waits may hold up the copies
// without which its signal is never set. Throws an error if a copy fails.
bool copies_go_on(const CopyStreams& streams, StreamSignals& signals) {
  const StreamSignal signal = signals.take();
  try {
    const bool goes_on = stream_goes_on(streams, signals, signal);
    if (goes_on) signals.give_back(signal);
    if (!goes_on) signal.set();
    return goes_on;
  } catch (...) {
    signal.set();
    throw;
  }
}

// Returns the signals of a device, or null if streams of the device cannot wait for them; then
// `missing` says why. Allocates the slots first: a stream that waits may hold up an allocation, and
// without the allocation a signal might never be set.
StreamSignals* usable_signals(const CopyStreams& streams, PinnedSlots& slots,
                              std::string* missing) {
  StreamSignals* const signals = find_signals(streams.device(), missing);
  if (signals == nullptr) return nullptr;
  slots.reserve();
  try {
    if (copies_go_on(streams, *signals)) return signals;
    *missing = "copies do not go on while a stream waits";
  } catch (const c10::Error& error) {  // the first operation will raise the same error, or works
    *missing = error.what_without_backtrace();
  }
  return nullptr;
}

}  // namespace

StagingDevice::StagingDevice(c10::Device device, const StagingOptions& options,
                             const std::shared_ptr<AwaitedWorks>& awaited, SharedMemory memory)
    : slots(device.type(), options.slot_bytes, options.max_slots), context([&] {
        const CopyStreams streams(device);
        streams.current();  // raises an error before the device is used, if a graph is captured
        why_not_shared = slots.share(SharedSlots(device, std::move(memory), options.slot_bytes));
        StreamSignals* const signals = options.wait_blocks_host
                                           ? nullptr
                                           : usable_signals(streams, slots, &why_wait_blocks_host);
        return DeviceContext{streams, signals, awaited};
      }()) {}

}  // namespace smdist::torch_binding
