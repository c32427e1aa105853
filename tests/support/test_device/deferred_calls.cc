// SPDX-License-Identifier: Apache-2.0
#include "deferred_calls.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include <atomic>

#include "current.h"
#include "scheduler.h"

namespace test_device {
namespace {

std::atomic<bool> deferred{true};

bool is_kind(const c10::TypePtr& type, c10::TypeKind kind) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return is_kind(optional->getElementType(), kind);
  }
  return type->kind() == kind;
}

bool can_defer(const BoxedCall& call) {
  if (call.op().hasTag(at::Tag::nondeterministic_seeded)) return false;
  if (!call.op().hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  for (const c10::Argument& argument : call.schema().arguments()) {
    if (is_kind(argument.type(), c10::TypeKind::GeneratorType)) return false;
    if (is_kind(argument.type(), c10::TypeKind::DeviceObjType)) return false;
  }
  for (const c10::Argument& value : call.schema().returns()) {
    if (value.type()->kind() != c10::TypeKind::TensorType) return false;
  }
  return !call.schema().returns().empty() || !call.written_tensors().empty();
}

bool has_same_geometry(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() &&
         one.storage_offset() == other.storage_offset() && one.dtype() == other.dtype();
}

// The results on the meta device, or none where it has no kernel, fails, or resizes an argument.
std::optional<torch::jit::Stack> run_on_meta(const BoxedCall& call) {
  TensorViews views(c10::DeviceType::Meta);
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  torch::jit::Stack stack;
  for (size_t i = 0; i < call.arguments().size(); ++i) {
    stack.push_back(with_tensors(call.arguments()[i], [&](const at::Tensor& tensor) {
      // kernels in Python take wrapped numbers on the CPU only
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
      const at::Tensor view = views.view(tensor);
      if (call.writes(i)) written.emplace_back(tensor, view);
      return view;
    }));
  }
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    call.op().callBoxed(stack);
  } catch (const std::exception&) {
    return std::nullopt;  // the CPU's kernel says what is wrong, if anything is
  }
  for (const auto& [tensor, view] : written) {
    if (!has_same_geometry(tensor, view)) return std::nullopt;
  }
  return stack;
}

torch::jit::Stack arguments_on_cpu(const BoxedCall& call, TensorViews& views) {
  torch::jit::Stack stack;
  for (const c10::IValue& argument : call.arguments()) {
    stack.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
      return is_on_device(tensor) ? views.view(tensor) : copy_of_scalar(tensor);
    }));
  }
  return stack;
}

// What an operator returns, and where its new tensors are to be written.
struct Results {
  std::vector<c10::IValue> returned;
  std::vector<std::pair<size_t, at::Tensor>> new_views;  // by the number of the return value
  BlockUses uses;
};

Results make_results(const BoxedCall& call, const torch::jit::Stack& meta, TensorViews& views) {
  Results results{{}, {}, call.uses()};
  for (size_t i = 0; i < meta.size(); ++i) {
    if (const auto argument = call.argument_of_return(i)) {
      results.returned.push_back(call.arguments()[*argument]);
      continue;
    }
    const at::Tensor& shape = meta[i].toTensor();
    if (!shape.defined()) {
      results.returned.push_back(shape);
      continue;
    }
    const at::Tensor result =
        at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(call.device()));
    results.returned.push_back(result);
    results.new_views.emplace_back(i, views.view(result));
    results.uses.add(result.storage().data());
  }
  return results;
}

}  // namespace

void set_deferred(bool is_deferred) { deferred = is_deferred; }

std::optional<std::vector<c10::IValue>> defer(const BoxedCall& call) {
  if (!deferred || !can_defer(call)) return std::nullopt;
  const auto meta = run_on_meta(call);
  if (!meta) return std::nullopt;
  TensorViews views(c10::DeviceType::CPU);
  Results results = make_results(call, *meta, views);
  auto run = [op = call.op(), stack = arguments_on_cpu(call, views),
              new_views = std::move(results.new_views), uses = std::move(results.uses)]() mutable {
    uses.count_stale();
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(stack);
    for (const auto& [index, view] : new_views) {
      const at::Tensor& result = stack[index].toTensor();
      TORCH_CHECK(result.sizes() == view.sizes(), op.operator_name(), " returned the shape ",
                  result.sizes(), " where the meta device has ", view.sizes());
      view.copy_(result);
    }
  };
  Scheduler::get().submit(current_stream(call.device().index()),
                          {call.op().operator_name().name, std::move(run)});
  return std::move(results.returned);
}

}  // namespace test_device
