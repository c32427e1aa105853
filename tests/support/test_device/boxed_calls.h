// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <unordered_map>
#include <vector>

#include "lifetime.h"

namespace test_device {

// Makes tensors of another device type with the geometry of device tensors, without a copy: on the
// CPU over the aliases of their memory, or on the meta device. Tensors that share a storage on the
// device share one here too, so that kernels see which of them overlap.
//
// A CPU tensor does not own the memory: it is valid in the order of the streams as long as the
// device tensor's block is, like the pointer that a real kernel is launched with.
class TensorViews final {
 public:
  explicit TensorViews(c10::DeviceType type) : type_(type) {}

  at::Tensor view(const at::Tensor& tensor);

 private:
  const c10::DeviceType type_;  // CPU or Meta
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
};

// A copy of a CPU tensor that an operation keeps, as a real kernel's launch keeps a scalar.
at::Tensor copy_of_scalar(const at::Tensor& cpu_tensor);

// Replaces each tensor of an argument, also in lists and optional ones, by what `change` returns.
// Undefined tensors stay.
c10::IValue with_tensors(const c10::IValue& argument,
                         const std::function<at::Tensor(const at::Tensor&)>& change);

// The defined tensors of an argument, or none.
std::vector<at::Tensor> tensors_of(const c10::IValue& argument);

bool is_on_device(const at::Tensor& tensor);

// An operator with its arguments, and what its schema says about them.
class BoxedCall final {
 public:
  BoxedCall(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  const c10::OperatorHandle& op() const { return *op_; }
  const std::vector<c10::IValue>& arguments() const { return arguments_; }
  const c10::FunctionSchema& schema() const { return op_->schema(); }

  c10::Device device() const { return device_; }  // where all device tensors are
  bool writes(size_t argument) const;             // as `Tensor(a!)` in a schema does
  std::vector<at::Tensor> written_tensors() const;
  BlockUses uses() const;  // of all tensors

  // The argument that a return value is, as `-> Tensor(a!)` says; none if it is a new tensor.
  // Throws c10::Error for a view of an argument, which a kernel of the device has to make.
  std::optional<size_t> argument_of_return(size_t index) const;

 private:
  c10::Device find_device() const;
  void check_devices() const;

  const c10::OperatorHandle* op_;
  std::vector<c10::IValue> arguments_;
  c10::Device device_;
};

}  // namespace test_device
