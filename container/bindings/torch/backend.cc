// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include <utility>

namespace smdist::torch_binding {
namespace {

using Tensors = Backend::Tensors;
using TensorLists = Backend::TensorLists;

at::Tensor& only(Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "smdist takes one tensor per call, not ", tensors.size());
  return tensors[0];
}

Tensors& only(TensorLists& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, "smdist takes one list of tensors per call, not ",
                    lists.size());
  return lists[0];
}

void check_same_dtype(const Tensors& inputs, const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    for (const at::Tensor& input : inputs) {
      TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), "the output is ",
                       output.scalar_type(), " and the input ", input.scalar_type(),
                       ": a collective keeps the dtype. Pass tensors of one dtype.");
    }
  }
}

// One part for each rank along the first dimension; equal parts without sizes.
Tensors parts_for(const at::Tensor& tensor, const Backend::Sizes& sizes, int ranks) {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (!sizes.empty()) {
    TORCH_CHECK_VALUE(static_cast<int>(sizes.size()) == ranks, "there are ", sizes.size(),
                      " split sizes for ", ranks, " ranks. Give one for each rank.");
    return tensor.split_with_sizes(sizes);
  }
  TORCH_CHECK_VALUE(rows % ranks == 0, "the tensor has ", rows, " rows, which ", ranks,
                    " ranks cannot share equally. Give split sizes.");
  return tensor.split_with_sizes(std::vector<int64_t>(ranks, rows / ranks));
}

[[noreturn]] void refuse(const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "smdist has no ", name,
      " yet: it moves tensors by collectives only. Make a group for it with "
      "torch.distributed.new_group(backend=\"gloo\") and pass group= to ",
      name, ".");
}

Dtype dtype_of(const Tensors& inputs, const Tensors& outputs) {
  const Tensors& known = inputs.empty() ? outputs : inputs;
  return known.empty() ? Dtype::kUint8 : wire_of(known[0].scalar_type()).dtype;
}

}  // namespace

Backend::Backend(std::shared_ptr<Engine> engine, uint32_t group, int rank, int size,
                 std::chrono::milliseconds timeout, bool owns_engine)
    : c10d::Backend(rank, size),
      engine_(std::move(engine)),
      group_(group),
      owns_engine_(owns_engine),
      options_(c10::make_intrusive<Options>("smdist", timeout)) {}

Backend::~Backend() = default;

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor& tensor = only(tensors);
  const int root = static_cast<int>(options.rootRank);
  return start({.type = c10d::OpType::BROADCAST,
                .kind = Collective::kBroadcast,
                .timeout = options.timeout,
                .inputs = {tensor},
                .outputs = {tensor},
                .root = root});
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor& tensor = only(tensors);
  check_arithmetic(tensor);
  return start({.type = c10d::OpType::ALLREDUCE,
                .kind = Collective::kAllReduce,
                .timeout = options.timeout,
                .inputs = {tensor},
                .outputs = {tensor},
                .reduction = reduction_of(options.reduceOp)});
}

Backend::WorkPtr Backend::allgather(TensorLists& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  return start({.type = c10d::OpType::ALLGATHER,
                .kind = Collective::kAllGather,
                .timeout = options.timeout,
                .inputs = {only(inputs)},
                .outputs = only(outputs)});
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  return start({.type = c10d::OpType::_ALLGATHER_BASE,
                .kind = Collective::kAllGather,
                .timeout = options.timeout,
                .inputs = {input},
                .outputs = {output}});
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  check_arithmetic(only(outputs));
  return start({.type = c10d::OpType::REDUCE_SCATTER,
                .kind = Collective::kReduceScatter,
                .timeout = options.timeout,
                .inputs = only(inputs),
                .outputs = {only(outputs)},
                .reduction = reduction_of(options.reduceOp)});
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  check_arithmetic(output);
  return start({.type = c10d::OpType::_REDUCE_SCATTER_BASE,
                .kind = Collective::kReduceScatter,
                .timeout = options.timeout,
                .inputs = {input},
                .outputs = {output},
                .reduction = reduction_of(options.reduceOp)});
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  at::Tensor& tensor = only(tensors);
  check_arithmetic(tensor);
  const int root = static_cast<int>(options.rootRank);
  return start({.type = c10d::OpType::REDUCE,
                .kind = Collective::kReduce,
                .timeout = options.timeout,
                .inputs = {tensor},
                .outputs = rank_ == root ? Tensors{tensor} : Tensors{},
                .reduction = reduction_of(options.reduceOp),
                .root = root});
}

Backend::WorkPtr Backend::gather(TensorLists& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  return start({.type = c10d::OpType::GATHER,
                .kind = Collective::kGather,
                .timeout = options.timeout,
                .inputs = {only(inputs)},
                .outputs = rank_ == root ? only(outputs) : Tensors{},
                .root = root});
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, TensorLists& inputs,
                                  const c10d::ScatterOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  return start({.type = c10d::OpType::SCATTER,
                .kind = Collective::kScatter,
                .timeout = options.timeout,
                .inputs = rank_ == root ? only(inputs) : Tensors{},
                .outputs = {only(outputs)},
                .root = root});
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& options) {
  return start({.type = c10d::OpType::ALLTOALL,
                .kind = Collective::kAllToAll,
                .timeout = options.timeout,
                .inputs = inputs,
                .outputs = outputs});
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, Sizes& output_sizes,
                                        Sizes& input_sizes, const c10d::AllToAllOptions& options) {
  return start({.type = c10d::OpType::ALLTOALL_BASE,
                .kind = Collective::kAllToAll,
                .timeout = options.timeout,
                .inputs = parts_for(input, input_sizes, size_),
                .outputs = parts_for(output, output_sizes, size_)});
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  return start({.type = c10d::OpType::BARRIER,
                .kind = Collective::kBarrier,
                .timeout = options.timeout,
                .inputs = {},
                .outputs = {}});
}

Backend::WorkPtr Backend::send(Tensors&, int, int) { refuse("send"); }
Backend::WorkPtr Backend::recv(Tensors&, int, int) { refuse("recv"); }
Backend::WorkPtr Backend::recvAnysource(Tensors&, int) { refuse("recv"); }

Backend::WorkPtr Backend::start(Call call) {
  check_tensors(call.inputs);
  check_tensors(call.outputs);
  check_outputs(call.outputs);
  check_same_dtype(call.inputs, call.outputs);
  const bool is_set = call.timeout != c10d::kUnsetTimeout && call.timeout != kNoTimeout;

  const Staged inputs(call.inputs);
  const Staged outputs(call.outputs);
  auto work = c10::make_intrusive<OperationWork>(rank_, call.type, call.outputs);
  Operation operation;
  operation.kind = call.kind;
  operation.dtype = dtype_of(call.inputs, call.outputs);
  operation.op = call.reduction.op;
  operation.scale = call.reduction.scale;
  operation.root = call.root;
  operation.inputs = inputs.spans();
  operation.outputs = outputs.spans();
  operation.timeout = is_set ? call.timeout : options_->timeout;
  operation.done = [work, inputs, outputs](std::exception_ptr error) {
    try {
      if (!error) outputs.copy_back();
    } catch (...) {
      error = std::current_exception();
    }
    work->complete(error);
  };
  try {
    sequence_ = engine_->submit(group_, std::move(operation));
  } catch (const Error&) {
    std::rethrow_exception(translated(std::current_exception()));
  }
  work->set_sequence(sequence_);
  return work;
}

void Backend::abort() { engine_->abort("the group was aborted by rank " + std::to_string(rank_)); }

void Backend::shutdown() {
  if (owns_engine_) return engine_->shutdown();
  try {
    engine_->remove_group(group_);
  } catch (const UsageError&) {
    // Operations are on their way: they end by themselves, and the number stays taken.
  }
}

}  // namespace smdist::torch_binding
