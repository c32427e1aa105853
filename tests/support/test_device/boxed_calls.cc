// SPDX-License-Identifier: Apache-2.0
#include "boxed_calls.h"

#include <ATen/core/List.h>

#include "current.h"
#include "device_allocator.h"
#include "pinned_allocator.h"

namespace test_device {

void BlockUses::add(const void* pointer) {
  if (auto use = device_allocator().use_of(pointer)) device.push_back(std::move(*use));
  if (auto use = pinned_allocator().use_of(pointer)) pinned.push_back(std::move(*use));
}

void BlockUses::count_stale() const {
  for (const BlockUse& use : device) stale_uses().device += use.is_stale();
  for (const BlockUse& use : pinned) stale_uses().pinned += use.is_stale();
}

StaleUses& stale_uses() {
  static StaleUses* const uses = new StaleUses;
  return *uses;
}

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

at::Tensor TensorViews::view(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  auto found = storages_.find(storage.unsafeGetStorageImpl());
  if (found == storages_.end()) {
    void* data = type_ == c10::DeviceType::CPU ? alias_of(storage.data()) : nullptr;
    c10::Storage viewed(c10::Storage::use_byte_size_t(), storage.nbytes(),
                        c10::DataPtr(data, type_), c10::GetAllocator(type_), true);
    found = storages_.emplace(storage.unsafeGetStorageImpl(), std::move(viewed)).first;
  }
  const auto key = c10::DispatchKeySet(type_ == c10::DeviceType::CPU ? c10::DispatchKey::CPU
                                                                     : c10::DispatchKey::Meta);
  at::Tensor view =
      at::detail::make_tensor<at::TensorImpl>(c10::Storage(found->second), key, tensor.dtype());
  at::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

at::Tensor copy_of_scalar(const at::Tensor& cpu_tensor) {
  at::Tensor copy = cpu_tensor.clone();
  if (cpu_tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

c10::IValue with_tensors(const c10::IValue& argument,
                         const std::function<at::Tensor(const at::Tensor&)>& change) {
  const auto changed = [&](const at::Tensor& tensor) {
    return tensor.defined() ? change(tensor) : tensor;
  };
  if (argument.isTensor()) return changed(argument.toTensor());
  if (argument.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : argument.toTensorVector()) list.push_back(changed(tensor));
    return list;
  }
  if (argument.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional<at::Tensor>(changed(*tensor)) : std::nullopt);
    }
    return list;
  }
  return argument;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& argument) {
  std::vector<at::Tensor> tensors;
  with_tensors(argument, [&](const at::Tensor& tensor) {
    tensors.push_back(tensor);
    return tensor;
  });
  return tensors;
}

BoxedCall::BoxedCall(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
    : op_(&op),
      arguments_(stack.end() - static_cast<ptrdiff_t>(op.schema().arguments().size()), stack.end()),
      device_(find_device()) {
  check_devices();
}

c10::Device BoxedCall::find_device() const {
  std::optional<c10::Device> named;
  for (const c10::IValue& argument : arguments_) {
    for (const at::Tensor& tensor : tensors_of(argument)) {
      if (is_on_device(tensor)) return tensor.device();
    }
    if (argument.isDevice() && argument.toDevice().type() == c10::DeviceType::PrivateUse1) {
      named = argument.toDevice();
    }
  }
  if (named && named->has_index()) return *named;
  return device_at(current_device());
}

// As on a real device, a CPU tensor with dimensions is an error, except as an index.
void BoxedCall::check_devices() const {
  const bool takes_cpu_indices = op_->operator_name().name.find("index") != std::string::npos;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    for (const at::Tensor& tensor : tensors_of(arguments_[i])) {
      if (tensor.device() == device_) continue;
      const bool is_allowed = tensor.is_cpu() && (tensor.dim() == 0 || takes_cpu_indices);
      TORCH_CHECK(is_allowed && !writes(i), "Expected all tensors to be on the same device, but ",
                  op_->operator_name(), " got tensors on ", device_, " and ", tensor.device());
    }
  }
}

bool BoxedCall::writes(size_t argument) const {
  const auto* alias = schema().arguments()[argument].alias_info();
  return alias != nullptr && alias->isWrite();
}

std::vector<at::Tensor> BoxedCall::written_tensors() const {
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!writes(i)) continue;
    for (const at::Tensor& tensor : tensors_of(arguments_[i])) written.push_back(tensor);
  }
  return written;
}

BlockUses BoxedCall::uses() const {
  BlockUses uses;
  for (const c10::IValue& argument : arguments_) {
    for (const at::Tensor& tensor : tensors_of(argument)) {
      if (is_on_device(tensor)) uses.add(tensor.storage().data());
    }
  }
  return uses;
}

std::optional<size_t> BoxedCall::argument_of_return(size_t index) const {
  const auto* alias = schema().returns()[index].alias_info();
  if (alias == nullptr) return std::nullopt;
  TORCH_CHECK(alias->isWrite(), "testdev: ", op_->operator_name(),
              " returns a view, and the device has no kernel for it");
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const auto* other = schema().arguments()[i].alias_info();
    if (other != nullptr && other->beforeSets() == alias->beforeSets()) return i;
  }
  TORCH_CHECK(false, "testdev: ", op_->operator_name(), " returns an unknown argument");
}

}  // namespace test_device
