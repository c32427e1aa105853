// SPDX-License-Identifier: Apache-2.0
#include "copy_streams.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace smdist::torch_binding {
namespace {

using Guard = c10::impl::VirtualGuardImpl;

// Return whether a stream captures a graph. torch cannot tell before 2.13; then the copies fail.
template <typename AnyGuard>
bool is_capturing(const AnyGuard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;
  }
}

}  // namespace

c10::Stream current_stream(c10::Device device) {
  const Guard guard(device.type());
  const c10::Stream current = guard.getStream(device);
  TORCH_CHECK_VALUE(!is_capturing(guard, current), "smdist was called while the current stream of ",
                    device,
                    " captures a graph, but a replay of the graph could not repeat the "
                    "communication. Capture the graph without collectives, and call them between "
                    "its replays.");
  return current;
}

CopyStreams::EventPtr record_event(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

void record_use(const at::Tensor& tensor, const c10::Stream& stream) {
  if (!tensor.device().is_cpu()) {
    Guard(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  }
}

CopyStreams::CopyStreams(c10::Device device)
    : device_(device),
      to_host_(Guard(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      to_device_(Guard(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {}

c10::Stream CopyStreams::current() const { return current_stream(device_); }

void CopyStreams::record_use(const at::Tensor& tensor) const {
  torch_binding::record_use(tensor, to_host_);
  torch_binding::record_use(tensor, to_device_);
}

CopyStreams::EventPtr CopyStreams::mark_current_stream() const { return record_event(current()); }

CopyStreams::EventPtr CopyStreams::copy_to_host(const std::vector<Copy>& copies,
                                                const EventPtr& after) const {
  return copy(to_host_, copies, after);
}

CopyStreams::EventPtr CopyStreams::copy_to_device(const std::vector<Copy>& copies,
                                                  const EventPtr& after) const {
  return copy(to_device_, copies, after);
}

CopyStreams::EventPtr CopyStreams::copy(const c10::Stream& stream, const std::vector<Copy>& copies,
                                        const EventPtr& after) const {
  const c10::StreamGuard guard(stream);
  const c10::InferenceMode no_autograd;  // the only mode in which every tensor may be written
  if (after) after->block(stream);
  for (const Copy& each : copies) {
    // Without the version counter, which autograd compares, of a tensor that is in use already:
    // the caller may go on before the copy is queued.
    each.target.variable_data().copy_(each.source, /*non_blocking=*/true);
  }
  return record_event(stream);
}

}  // namespace smdist::torch_binding
