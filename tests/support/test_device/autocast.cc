// SPDX-License-Identifier: Apache-2.0
// Autocast for the operators that an MLP or a transformer has. Others take the dtypes they get.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "boxed_calls.h"

// Declared here because ATen/autocast_mode.h includes every operator.
namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
}  // namespace at::autocast

namespace test_device {
namespace {

// Casts the device's floating-point arguments, and calls the operator without autocast.
void call_with(at::ScalarType dtype, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastPrivateUse1);
  const size_t first = stack->size() - op.schema().arguments().size();
  for (size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = with_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      return is_on_device(tensor) && tensor.is_floating_point() ? tensor.to(dtype) : tensor;
    });
  }
  op.callBoxed(stack);
}

void in_autocast_dtype(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_with(at::autocast::get_autocast_dtype(c10::DeviceType::PrivateUse1), op, stack);
}

void in_float32(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_with(at::kFloat, op, stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  for (const char* name :
       {"addmm", "baddbmm", "bmm", "linear", "matmul", "mm", "scaled_dot_product_attention"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_autocast_dtype>());
  }
  for (const char* name : {"cross_entropy_loss", "layer_norm", "log_softmax.int", "mse_loss",
                           "nll_loss", "softmax.int"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_float32>());
  }
}

}  // namespace
}  // namespace test_device
