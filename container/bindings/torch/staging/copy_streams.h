// SPDX-License-Identifier: Apache-2.0
// Copies between the memory of a device, such as a GPU, and pinned memory of the host.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

namespace smdist::torch_binding {

// One copy within a device, or between it and the host. Both tensors are contiguous, and have the
// same dtype and number of elements.
struct Copy {
  at::Tensor target;
  at::Tensor source;
};

// Two streams of one device: one for copies to the host, one for copies to the device, so that both
// directions overlap. They have a high priority: streams of different priorities share no queue of
// the device, so copies go on while a stream of the usual priority waits for their results. c10
// provides streams, events and copies for each type of device, so nothing here names CUDA.
//
// Thread safety: const methods may be called from any thread.
class CopyStreams final {
 public:
  using EventPtr = std::shared_ptr<const c10::Event>;

  // Take two streams from the device's pool. Throws an error if the device type has no streams.
  explicit CopyStreams(c10::Device device);

  c10::Device device() const { return device_; }
  c10::Stream to_device() const { return to_device_; }

  // Return the calling thread's current stream. Throws ValueError if it is capturing a graph.
  c10::Stream current() const;

  // Return an event that is complete when the work is complete that the calling thread has queued
  // on its current stream. Throws ValueError if that stream is capturing a graph.
  EventPtr mark_current_stream() const;

  // Let the allocator not use a tensor's memory for others until the copies that are queued when
  // the tensor is freed are complete. Call it in the thread that starts an operation, and not in
  // the threads that copy: an allocator that frees its cache waits for streams, with a lock that
  // this call takes, and a stream may wait for the threads that copy.
  void record_use(const at::Tensor& tensor) const;

  // Queue copies on one of the streams, behind the event `after` unless it is null, and return an
  // event that is complete when the copies are. Requires: record_use() was called for all tensors
  // of a device.
  EventPtr copy_to_host(const std::vector<Copy>& copies, const EventPtr& after) const;
  EventPtr copy_to_device(const std::vector<Copy>& copies, const EventPtr& after) const;

 private:
  EventPtr copy(const c10::Stream& stream, const std::vector<Copy>& copies,
                const EventPtr& after) const;

  const c10::Device device_;
  const c10::Stream to_host_;
  const c10::Stream to_device_;
};

// Return the calling thread's current stream. Throws ValueError if it is capturing a graph.
c10::Stream current_stream(c10::Device device);

// Return an event that is complete when the work is complete that the stream has now.
CopyStreams::EventPtr record_event(const c10::Stream& stream);

// Let the allocator not use a tensor's memory for others until the work that the stream has when
// the tensor is freed is complete. Nothing for a tensor of the host.
void record_use(const at::Tensor& tensor, const c10::Stream& stream);

}  // namespace smdist::torch_binding
