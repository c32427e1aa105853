// SPDX-License-Identifier: Apache-2.0
// Operators that allocate a tensor of the device, or change which memory it has.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/set_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "current.h"
#include "device_allocator.h"

namespace test_device {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device checked_device(std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(at::Layout::Strided) == at::Layout::Strided,
              "testdev: tensors are strided, not ", layout.value_or(at::Layout::Strided));
  TORCH_CHECK(!pin_memory.value_or(false), "testdev: only tensors on the CPU can be pinned");
  const c10::DeviceIndex index = device && device->has_index() ? device->index() : current_device();
  return device_at(index);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(checked_device(layout, device, pin_memory));
  return at::detail::empty_generic(size, &device_allocator(), kKeys, c10::dtype_or_default(dtype),
                                   memory_format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(checked_device(layout, device, pin_memory));
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

// Grows a tensor's storage until `size` and `stride` fit. A storage never shrinks.
void fit_storage(const at::Tensor& tensor, at::IntArrayRef size, at::IntArrayRef stride) {
  const size_t bytes = at::detail::computeStorageNbytes(size, stride, tensor.dtype().itemsize(),
                                                        tensor.storage_offset());
  if (c10::multiply_integers(size) == 0 || bytes <= tensor.storage().nbytes()) return;
  at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), bytes);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(self.device());
  at::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    fit_storage(self, size, c10::contiguous_strides(size));
    impl->set_sizes_contiguous(size);
  }
  if (memory_format) impl->empty_tensor_restride(*memory_format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  const auto contiguous = c10::contiguous_strides(size);
  if (stride.data() == nullptr) stride = contiguous;
  at::native::checkSetStorage(self, std::move(storage), offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  fit_storage(self, size, stride);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return self;
}

at::Tensor& set_empty(at::Tensor& self) {
  const at::Tensor nothing =
      empty({0}, self.scalar_type(), std::nullopt, self.device(), std::nullopt, std::nullopt);
  return set_storage(self, nothing.storage(), 0, {0}, {1});
}

void record_stream(at::Tensor& self, at::Stream stream) {
  Scheduler::get();  // throws after a fork, before anything is locked
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize_);
  library.impl("set_", set_empty);
  library.impl("set_.source_Storage", at::native::set_);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("record_stream", record_stream);
}

}  // namespace
}  // namespace test_device
