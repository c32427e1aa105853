// SPDX-License-Identifier: Apache-2.0
// Conversion of torch's calls to engine operations.
#include <utility>

#include "backend.h"

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

Backend::WorkPtr Backend::start_all(const Name& name, const std::vector<Call>& calls) {
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
  auto work = c10::make_intrusive<OperationWork>(engine_, rank_, name.type, name.title, shown,
                                                 outputs, calls.size());
  const bool is_awaited = calls.size() == 1 && !calls[0].is_async;
  for (const Call& call : calls) submit(call, work, is_awaited);
  return work;
}

// Submits one operation. is_awaited: the calling thread blocks until the operation is complete.
void Backend::submit(const Call& call, const c10::intrusive_ptr<OperationWork>& work,
                     bool is_awaited) {
  const StagedTensors inputs(call.inputs);
  const StagedTensors outputs(call.outputs);
  Operation operation = operation_of(call, *work);
  operation.inputs = inputs.spans();
  operation.outputs = outputs.spans();
  work->copy_back_at_end(outputs);
  // Capture no tensor: its destructor may wait for the GIL, on the thread that moves the data.
  operation.ended = [completion = work->completion(),
                     kind = call.kind](const std::exception_ptr& error) {
    activity().end(kind);
    completion->complete(error);
  };
  if (!is_awaited) {
    operation.done = [work, inputs, outputs](const std::exception_ptr&) { work->complete_part(); };
  }
  activity().begin(call.kind);
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

Operation Backend::operation_of(const Call& call, OperationWork& work) const {
  const bool is_set = call.timeout != c10d::kUnsetTimeout && call.timeout != kNoTimeout;
  Operation operation;
  operation.kind = call.kind;
  operation.dtype = dtype_of(call.inputs, call.outputs);
  operation.op = call.reduction.op;
  operation.scale = call.reduction.scale;
  operation.root = call.root;
  operation.peer = call.peer;
  operation.tag = static_cast<uint32_t>(call.tag);
  operation.source = work.source();
  operation.timeout = is_set ? call.timeout : options_->timeout;
  return operation;
}

}  // namespace smdist::torch_binding
