// SPDX-License-Identifier: Apache-2.0
// Conversion of torch's calls to engine operations.
#include <utility>

#include "backend.h"
#include "engine/algorithm_choice.h"
#include "staging/registry.h"

namespace smdist::torch_binding {
namespace {

using Tensors = Backend::Tensors;

void check_same_dtype(const Tensors& inputs, const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    for (const at::Tensor& input : inputs) {
      TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), "the output has dtype ",
                       output.scalar_type(), " and the input has dtype ", input.scalar_type(),
                       ", but a collective does not convert dtypes. Pass tensors of one dtype.");
    }
  }
}

Dtype dtype_of(const Tensors& inputs, const Tensors& outputs) {
  const Tensors& known = inputs.empty() ? outputs : inputs;
  return known.empty() ? Dtype::kUint8 : wire_of(known[0].scalar_type()).dtype;
}

}  // namespace

Backend::WorkPtr Backend::start(const Name& name, Call call) { return start_all(name, {call}); }

Backend::WorkPtr Backend::start_all(const Name& name, std::vector<Call> calls) {
  Tensors inputs;
  Tensors outputs;
  for (const Call& call : calls) {
    check_tensors(call.inputs);
    check_tensors(call.outputs);
    check_outputs(call.outputs);
    check_same_dtype(call.inputs, call.outputs);
    TORCH_CHECK_VALUE(call.tag >= 0, "the tag is ", call.tag, ", but it may not be negative.");
    inputs.insert(inputs.end(), call.inputs.begin(), call.inputs.end());
    outputs.insert(outputs.end(), call.outputs.begin(), call.outputs.end());
  }
  const Tensors& shown = inputs.empty() ? outputs : inputs;
  const c10::Device device = device_of(inputs, outputs);
  if (calls.size() > 1) share_number(calls);
  if (!device.is_cpu()) return stage_all(name, calls, shown, outputs, device);
  auto work = c10::make_intrusive<OperationWork>(engine_, rank_, name.type, name.title, shown,
                                                 outputs, calls.size());
  const bool is_awaited = calls.size() == 1 && !calls[0].is_async;
  for (const Call& call : calls) submit(call, work, is_awaited);
  return work;
}

// Submits one operation. may_await: the calling thread waits until the operation is complete,
// unless the operation has to stay behind others.
void Backend::submit(const Call& call, const c10::intrusive_ptr<OperationWork>& work,
                     bool may_await) {
  const StagedTensors inputs(call.inputs);
  const StagedTensors outputs(call.outputs);
  Operation operation = operation_of(call, work->source());
  operation.inputs = inputs.spans();
  operation.outputs = outputs.spans();
  work->copy_back_at_end(outputs);
  // Capture no tensor: its destructor may wait for the GIL, on the thread that moves the data.
  operation.ended = [completion = work->completion(),
                     kind = call.kind](const std::exception_ptr& error) {
    activity().end(kind);
    completion->complete(error);
  };
  const std::shared_ptr<StagingQueue> staging = find_staging(*engine_);
  const bool is_awaited = may_await && !staging;
  if (!is_awaited) {
    operation.done = [work, inputs, outputs](const std::exception_ptr&) { work->complete_part(); };
  }
  activity().begin(call.kind);
  if (staging && staging->run_in_order(submission(operation, work))) return;
  try {
    sequence_ = is_awaited
                    ? engine_->submit_and_wait(group_, std::move(operation), *work->completion())
                    : engine_->submit(group_, std::move(operation));
  } catch (const Error&) {
    activity().end(call.kind);
    std::rethrow_exception(translated(std::current_exception()));
  }
  work->set_sequence(sequence_);
  if (is_awaited) work->complete_part();
}

// Returns a function that submits an operation later, behind the operations on device tensors that
// were called before. Its errors are those of the Work.
std::function<void()> Backend::submission(const Operation& operation,
                                          const c10::intrusive_ptr<OperationWork>& work) const {
  return [engine = engine_, group = group_, operation, work] {
    try {
      work->set_sequence(engine->submit(group, operation));
    } catch (const Error&) {
      operation.ended(std::current_exception());
      operation.done(std::current_exception());
    }
  };
}

// Starts operations on the tensors of a device.
Backend::WorkPtr Backend::stage_all(const Name& name, const std::vector<Call>& calls,
                                    const Tensors& shown, const Tensors& outputs,
                                    c10::Device device) {
  if (WorkPtr work = start_in_two_levels(name, calls, shown, outputs, device)) return work;
  if (!staging_) staging_ = staging_of(engine_, staging_options_);
  const DeviceContext& context = staging_->context_of(device);
  auto work = c10::make_intrusive<StagedWork>(rank_, name.type, name.title, shown, outputs, context,
                                              context.streams.to_device(), calls.size());
  for (const Call& call : calls) stage(call, work, *staging_);
  try {
    staging_->raise_late_error();
  } catch (const Error&) {
    std::rethrow_exception(translated(std::current_exception()));
  }
  return work;
}

void Backend::stage(const Call& call, const c10::intrusive_ptr<StagedWork>& work,
                    StagingQueue& staging) {
  const StagedTensors inputs(call.inputs);
  const StagedTensors outputs(call.outputs);
  DeviceOperation staged{.group = group_,
                         .rank = rank_,
                         .size = size_,
                         .operation = operation_of(call, work->source()),
                         .inputs = inputs.contiguous(),
                         .outputs = outputs.contiguous()};
  const Descriptor descriptor = check(staged.operation, inputs.spans(), outputs.spans());
  if (!call.number && !is_point_to_point(call.kind)) {  // the pieces are operations of one call
    staged.operation.call = std::make_shared<CallNumber>(CallNumber{descriptor.bytes, 0, 0});
  }
  // wait() may return before the message has come, and the caller may read the rank then
  if (call.kind == Collective::kReceive && call.peer != kAnyRank) *work->source() = call.peer;
  std::vector<Copy> copy_back;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const at::Tensor& original = call.outputs[i];
    const at::Tensor& contiguous = outputs.contiguous()[i];
    if (!original.is_same(contiguous)) copy_back.push_back({original.detach(), contiguous});
  }
  const auto end_activity = [kind = call.kind, is_counted = !is_level_] {
    if (is_counted) activity().end(kind);
  };
  if (!is_level_) activity().begin(call.kind);
  try {
    staging.stage(std::move(staged), std::move(copy_back), work, end_activity);
  } catch (...) {
    end_activity();
    std::rethrow_exception(translated(std::current_exception()));
  }
}

// Gives the operations of one call one number. Checks all of them before the first one starts:
// otherwise this rank could start some of them, and no other rank would know that there are no
// more.
void Backend::share_number(std::vector<Call>& calls) const {
  auto number = std::make_shared<CallNumber>();
  for (Call& call : calls) {
    number->call_bytes += check_lengths(call).bytes;
    call.number = number;
  }
}

// Returns what other ranks compare. Raises ValueError if the lengths of tensors or the numbers of
// ranks are wrong.
Descriptor Backend::check_lengths(const Call& call) const {
  CheckedSpans spans;
  std::vector<Span> inputs = spans.of(call.inputs);
  return check(operation_of(call, nullptr), std::move(inputs), spans.of(call.outputs));
}

// Does the same for an operation without buffers, and its buffers.
Descriptor Backend::check(Operation operation, std::vector<Span> inputs,
                          std::vector<Span> outputs) const {
  operation.inputs = std::move(inputs);
  operation.outputs = std::move(outputs);
  operation.done = [](const std::exception_ptr&) {};
  try {
    Engine::check_operation(operation, rank_, size_);
    return descriptor_of(operation, rank_, size_);
  } catch (const Error&) {
    std::rethrow_exception(translated(std::current_exception()));
  }
}

Operation Backend::operation_of(const Call& call, int* source) const {
  const bool is_set = call.timeout != c10d::kUnsetTimeout && call.timeout != kNoTimeout;
  Operation operation;
  operation.kind = call.kind;
  operation.dtype = dtype_of(call.inputs, call.outputs);
  operation.op = call.reduction.op;
  operation.scale = call.reduction.scale;
  operation.root = call.root;
  operation.peer = call.peer;
  operation.tag = static_cast<uint32_t>(call.tag);
  operation.layout = call.layout;
  operation.source = source;
  operation.call = call.number;
  operation.timeout = is_set ? call.timeout : options_->timeout;
  return operation;
}

}  // namespace smdist::torch_binding
