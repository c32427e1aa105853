// SPDX-License-Identifier: Apache-2.0
// Copies between tensors of the device, and between these and the host, by CUDA's rules:
//
//   pinned memory, non_blocking      later, on the device's current stream
//   other host memory                the host waits for the stream
//   another dtype or other strides   converted on the source's side, through a dense copy
//   between two devices              on the source's stream, after the destination's stream
#include "copies.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <stdexcept>

#include "boxed_calls.h"
#include "copy_faults.h"
#include "current.h"
#include "device_memory.h"
#include "held_copies.h"
#include "pinned_allocator.h"
#include "scheduler.h"

namespace test_device {
namespace {

std::atomic<double> bandwidth{0};

Clock::duration duration_of(size_t bytes) {
  const double bytes_per_second = bandwidth;
  if (bytes_per_second == 0) return {};
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_second));
}

// Queues what moves the bytes, or the fault that was chosen for this copy.
void submit(const c10::Stream& stream, CopyKind kind, size_t bytes, BlockUses uses,
            std::function<void()> move) {
  const bool fails = copy_faults().fails_next(kind);
  auto copy = [kind, fails, uses = std::move(uses), move = std::move(move)] {
    uses.count_stale();
    if (fails) throw std::runtime_error(std::string("injected fault in ") + name_of(kind));
    move();
  };
  held_copies().block(stream, kind);
  Scheduler::get().submit(stream, {name_of(kind), std::move(copy), duration_of(bytes)});
}

bool has_same_bytes(const at::Tensor& one, const at::Tensor& other) {
  return one.dtype() == other.dtype() && one.sizes() == other.sizes() &&
         one.strides() == other.strides() && one.is_non_overlapping_and_dense() &&
         one.is_conj() == other.is_conj() && one.is_neg() == other.is_neg();
}

// One end of a copy in host memory: one piece, of the same bytes as the other end on the device.
void copy_bytes(const at::Tensor& host, const at::Tensor& device, CopyKind kind,
                bool non_blocking) {
  const c10::Stream stream = current_stream(device.device().index());
  void* pointer = const_cast<void*>(host.const_data_ptr());
  const bool is_asynchronous = non_blocking && pinned_allocator().contains(pointer);
  BlockUses uses;
  uses.add(device.const_data_ptr());
  uses.add(pointer);
  void* alias = alias_of(device.const_data_ptr());
  const size_t bytes = host.nbytes();
  if (kind == CopyKind::kHostToDevice) {
    submit(stream, kind, bytes, std::move(uses),
           [pointer, alias, bytes] { std::memcpy(alias, pointer, bytes); });
  } else {
    submit(stream, kind, bytes, std::move(uses),
           [pointer, alias, bytes] { std::memcpy(pointer, alias, bytes); });
  }
  if (is_asynchronous) {
    pinned_allocator().record_event(pointer, host.storage().data_ptr().get_context(), stream);
  } else {
    Scheduler::get().synchronize(stream);
  }
}

at::Tensor dense(const at::Tensor& source, at::ScalarType dtype) {
  return source.to(dtype).resolve_conj().resolve_neg().contiguous();
}

at::Tensor dense_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options());
}

void copy_to_device(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  if (has_same_bytes(source, destination)) {
    copy_bytes(source, destination, CopyKind::kHostToDevice, non_blocking);
    return;
  }
  const at::Tensor from = dense(source, destination.scalar_type());
  const at::Tensor to = has_same_bytes(from, destination) ? destination : dense_like(destination);
  copy_bytes(from, to, CopyKind::kHostToDevice, non_blocking && from.is_same(source));
  if (!to.is_same(destination)) destination.copy_(to);
}

void copy_to_host(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  if (has_same_bytes(source, destination)) {
    copy_bytes(destination, source, CopyKind::kDeviceToHost, non_blocking);
    return;
  }
  const at::Tensor from = dense(source, destination.scalar_type());
  const bool fits = has_same_bytes(from, destination);
  const at::Tensor to = fits ? destination : dense_like(destination);
  copy_bytes(to, from, CopyKind::kDeviceToHost, non_blocking && fits);
  if (!fits) destination.copy_(to);
}

void copy_on_devices(const at::Tensor& source, const at::Tensor& destination) {
  const c10::Stream stream = current_stream(source.device().index());
  const c10::Stream other = current_stream(destination.device().index());
  const bool is_between_devices = stream.device() != other.device();
  Scheduler& scheduler = Scheduler::get();
  if (is_between_devices) scheduler.block(stream, scheduler.record(other));
  TensorViews views(c10::DeviceType::CPU);
  BlockUses uses;
  uses.add(source.storage().data());
  uses.add(destination.storage().data());
  submit(stream, CopyKind::kDeviceToDevice, destination.nbytes(), std::move(uses),
         [from = views.view(source), to = views.view(destination)] {
           const at::AutoDispatchBelowADInplaceOrView guard;
           to.copy_(from);
         });
  if (is_between_devices) scheduler.block(other, scheduler.record(stream));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  Scheduler::get();  // throws after a fork, before anything is locked
  if (destination.numel() == 0 || self.is_same(destination)) return destination;
  const c10::DeviceGuard guard(is_on_device(self) ? self.device() : destination.device());
  const at::Tensor source = self.expand_as(destination);
  if (is_on_device(self) && is_on_device(destination)) {
    copy_on_devices(source, destination);
  } else if (is_on_device(self)) {
    TORCH_CHECK(destination.is_cpu(), "testdev: no copy from ", self.device(), " to ",
                destination.device());
    copy_to_host(source, destination, non_blocking);
  } else {
    TORCH_CHECK(self.is_cpu(), "testdev: no copy from ", self.device(), " to ",
                destination.device());
    copy_to_device(source, destination, non_blocking);
  }
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
}

// Conjugated and negated views are copied as they are, for the destination may be one.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace

void set_copy_bandwidth(double bytes_per_second) {
  TORCH_CHECK(bytes_per_second >= 0, "testdev: a bandwidth is not negative");
  bandwidth = bytes_per_second;
}

}  // namespace test_device
