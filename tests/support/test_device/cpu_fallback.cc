// SPDX-License-Identifier: Apache-2.0
// Runs every operator that the device has no kernel for with the CPU's kernel, over the aliases of
// the device's memory.
//
// Most run later, on the current stream (deferred_calls.h). The others run at once on the host,
// after all that is queued on the current stream: they are in the stream's order too, and the host
// waits for them, as it does for an operator that copies a result from a real device.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "boxed_calls.h"
#include "current.h"
#include "deferred_calls.h"
#include "device_memory.h"
#include "generators.h"
#include "scheduler.h"

namespace test_device {
namespace {

struct WrittenView {
  at::Tensor tensor;
  at::Tensor view;
};

// The arguments for the CPU's kernel, and what it may resize.
struct CpuArguments {
  torch::jit::Stack stack;
  std::vector<WrittenView> written;
  std::optional<size_t> generator;  // which argument is one
};

bool is_generator(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : type)->kind() == c10::TypeKind::GeneratorType;
}

CpuArguments arguments_on_cpu(const BoxedCall& call, TensorViews& views) {
  CpuArguments result;
  for (size_t i = 0; i < call.arguments().size(); ++i) {
    const c10::IValue& argument = call.arguments()[i];
    if (is_generator(call.schema().arguments()[i].type())) result.generator = i;
    if (argument.isDevice()) {
      result.stack.emplace_back(c10::Device(c10::DeviceType::CPU));
      continue;
    }
    result.stack.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
      if (!is_on_device(tensor)) return tensor;
      const at::Tensor view = views.view(tensor);
      if (call.writes(i)) result.written.push_back({tensor, view});
      return view;
    }));
  }
  return result;
}

void call_kernel(const BoxedCall& call, CpuArguments& arguments) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (!arguments.generator) {
    call.op().callBoxed(arguments.stack);
    return;
  }
  const c10::IValue& given = call.arguments()[*arguments.generator];
  const at::Generator generator =
      given.isNone() ? default_generator(call.device().index()) : given.toGenerator();
  TORCH_CHECK(generator.device().type() == c10::DeviceType::PrivateUse1,
              "Expected a generator of device ", call.device(), ", but found one of ",
              generator.device());
  with_cpu_generator(generator, [&](const at::Generator& on_cpu) {
    arguments.stack[*arguments.generator] = on_cpu;
    call.op().callBoxed(arguments.stack);
  });
}

// Gives the device's tensor the size that the kernel gave its view, with the contents.
void follow_resize(const WrittenView& written) {
  const c10::Storage& storage = written.tensor.storage();
  const c10::Storage& on_cpu = written.view.storage();
  if (on_cpu.data() != alias_of(storage.data())) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, on_cpu.nbytes());
    auto write = [on_cpu, to = alias_of(storage.data())] {
      std::memcpy(to, on_cpu.data(), on_cpu.nbytes());
    };
    Scheduler::get().submit(current_stream(storage.device().index()),
                            {"write_resized", std::move(write)});
  }
  at::TensorImpl* impl = written.tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(written.view.storage_offset());
  impl->set_sizes_and_strides(written.view.sizes(), written.view.strides());
}

// A tensor of the device that gets the contents of a CPU tensor, in the order of the stream.
at::Tensor moved_to_device(const at::Tensor& result, c10::Device device) {
  const at::Tensor dense = result.is_non_overlapping_and_dense() ? result : result.contiguous();
  const at::Tensor moved =
      at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(device));
  auto write = [dense, view = TensorViews(c10::DeviceType::CPU).view(moved)] { view.copy_(dense); };
  Scheduler::get().submit(current_stream(device.index()), {"write_result", std::move(write)});
  return moved;
}

std::vector<c10::IValue> run_now(const BoxedCall& call) {
  Scheduler::get().synchronize(current_stream(call.device().index()));
  call.uses().count_stale();
  TensorViews views(c10::DeviceType::CPU);
  CpuArguments arguments = arguments_on_cpu(call, views);
  call_kernel(call, arguments);
  for (const WrittenView& written : arguments.written) follow_resize(written);
  std::vector<c10::IValue> returned;
  for (size_t i = 0; i < arguments.stack.size(); ++i) {
    if (const auto argument = call.argument_of_return(i)) {
      returned.push_back(call.arguments()[*argument]);
    } else {
      returned.push_back(with_tensors(arguments.stack[i], [&](const at::Tensor& result) {
        return moved_to_device(result, call.device());
      }));
    }
  }
  return returned;
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Scheduler::get();  // throws after a fork, before anything is locked
  const BoxedCall call(op, *stack);
  const c10::DeviceGuard guard(call.device());
  auto returned = defer(call);
  if (!returned) returned = run_now(call);
  torch::jit::drop(*stack, call.arguments().size());
  for (c10::IValue& value : *returned) stack->push_back(std::move(value));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

}  // namespace
}  // namespace test_device
