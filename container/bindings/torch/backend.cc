// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include <utility>

#include "staging/registry.h"

namespace smdist::torch_binding {
namespace {

using Tensors = Backend::Tensors;
using TensorLists = Backend::TensorLists;

at::Tensor& only(Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "smdist takes one tensor per call, but got ",
                    tensors.size(), ".");
  return tensors[0];
}

Tensors& only(TensorLists& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, "smdist takes one list of tensors per call, but got ",
                    lists.size(), ".");
  return lists[0];
}

void check_same_count(const Tensors& inputs, const Tensors& outputs) {
  TORCH_CHECK_VALUE(inputs.size() == outputs.size(), "there are ", inputs.size(), " inputs and ",
                    outputs.size(), " outputs. Give one output for each input.");
}

// Splits a tensor along the first dimension into one part per rank. sizes: length of each part;
// empty: equal parts.
Tensors parts_for(const at::Tensor& tensor, const Backend::Sizes& sizes, int ranks) {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (!sizes.empty()) {
    TORCH_CHECK_VALUE(static_cast<int>(sizes.size()) == ranks, "there are ", sizes.size(),
                      " split sizes for ", ranks, " ranks. Give one for each rank.");
    return tensor.split_with_sizes(sizes);
  }
  TORCH_CHECK_VALUE(rows % ranks == 0, "the tensor has ", rows,
                    " rows, which cannot be divided equally among ", ranks,
                    " ranks. Pass split sizes.");
  return tensor.split_with_sizes(std::vector<int64_t>(ranks, rows / ranks));
}

}  // namespace

Activity& activity() {
  static auto* const of_process = new Activity;
  return *of_process;
}

Backend::Backend(std::shared_ptr<Engine> engine, uint32_t group, int rank, int size,
                 std::chrono::milliseconds timeout, StagingOptions staging_options,
                 LevelOptions level_options, bool owns_engine,
                 std::function<void()> before_shutdown, bool is_level)
    : c10d::Backend(rank, size),
      engine_(std::move(engine)),
      group_(group),
      staging_options_(staging_options),
      level_options_(std::move(level_options)),
      owns_engine_(owns_engine),
      before_shutdown_(std::move(before_shutdown)),
      is_level_(is_level),
      options_(c10::make_intrusive<Options>("smdist", timeout)) {}

Backend::~Backend() = default;

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor& tensor = only(tensors);
  const int root = static_cast<int>(options.rootRank);
  return start({c10d::OpType::BROADCAST, "smdist:broadcast"}, {.kind = Collective::kBroadcast,
                                                               .timeout = options.timeout,
                                                               .inputs = {tensor},
                                                               .outputs = {tensor},
                                                               .root = root,
                                                               .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor& tensor = only(tensors);
  if (tensor.is_sparse()) return allreduce_sparse_tensor(tensor, options);
  return allreduce_of_layout(tensor, options, 0);
}

Backend::WorkPtr Backend::allreduce_of_layout(at::Tensor& tensor,
                                              const c10d::AllreduceOptions& options,
                                              uint64_t layout) {
  check_arithmetic(tensor);
  return start({c10d::OpType::ALLREDUCE, "smdist:all_reduce"},
               {.kind = Collective::kAllReduce,
                .timeout = options.timeout,
                .inputs = {tensor},
                .outputs = {tensor},
                .reduction = reduction_of(options.reduceOp),
                .layout = layout,
                .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::allgather(TensorLists& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  return start({c10d::OpType::ALLGATHER, "smdist:all_gather"}, {.kind = Collective::kAllGather,
                                                                .timeout = options.timeout,
                                                                .inputs = {only(inputs)},
                                                                .outputs = only(outputs),
                                                                .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  return start({c10d::OpType::_ALLGATHER_BASE, "smdist:_all_gather_base"},
               {.kind = Collective::kAllGather,
                .timeout = options.timeout,
                .inputs = {input},
                .outputs = {output},
                .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  check_arithmetic(only(outputs));
  return start({c10d::OpType::REDUCE_SCATTER, "smdist:reduce_scatter"},
               {.kind = Collective::kReduceScatter,
                .timeout = options.timeout,
                .inputs = only(inputs),
                .outputs = {only(outputs)},
                .reduction = reduction_of(options.reduceOp),
                .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  check_arithmetic(output);
  return start({c10d::OpType::_REDUCE_SCATTER_BASE, "smdist:_reduce_scatter_base"},
               {.kind = Collective::kReduceScatter,
                .timeout = options.timeout,
                .inputs = {input},
                .outputs = {output},
                .reduction = reduction_of(options.reduceOp),
                .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  at::Tensor& tensor = only(tensors);
  check_arithmetic(tensor);
  const int root = static_cast<int>(options.rootRank);
  return start({c10d::OpType::REDUCE, "smdist:reduce"},
               {.kind = Collective::kReduce,
                .timeout = options.timeout,
                .inputs = {tensor},
                .outputs = rank_ == root ? Tensors{tensor} : Tensors{},
                .reduction = reduction_of(options.reduceOp),
                .root = root,
                .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::gather(TensorLists& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  return start({c10d::OpType::GATHER, "smdist:gather"},
               {.kind = Collective::kGather,
                .timeout = options.timeout,
                .inputs = {only(inputs)},
                .outputs = rank_ == root ? only(outputs) : Tensors{},
                .root = root,
                .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, TensorLists& inputs,
                                  const c10d::ScatterOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  return start({c10d::OpType::SCATTER, "smdist:scatter"},
               {.kind = Collective::kScatter,
                .timeout = options.timeout,
                .inputs = rank_ == root ? only(inputs) : Tensors{},
                .outputs = {only(outputs)},
                .root = root,
                .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& options) {
  return start({c10d::OpType::ALLTOALL, "smdist:all_to_all"}, {.kind = Collective::kAllToAll,
                                                               .timeout = options.timeout,
                                                               .inputs = inputs,
                                                               .outputs = outputs,
                                                               .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, Sizes& output_sizes,
                                        Sizes& input_sizes, const c10d::AllToAllOptions& options) {
  return start({c10d::OpType::ALLTOALL_BASE, "smdist:all_to_all"},
               {.kind = Collective::kAllToAll,
                .timeout = options.timeout,
                .inputs = parts_for(input, input_sizes, size_),
                .outputs = parts_for(output, output_sizes, size_),
                .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  return start({c10d::OpType::BARRIER, "smdist:barrier"}, {.kind = Collective::kBarrier,
                                                           .timeout = options.timeout,
                                                           .inputs = {},
                                                           .outputs = {},
                                                           .is_async = options.asyncOp});
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  std::vector<Call> calls;
  for (const at::Tensor& tensor : tensors) {
    check_arithmetic(tensor);
    calls.push_back({.kind = Collective::kAllReduce,
                     .timeout = options.timeout,
                     .inputs = {tensor},
                     .outputs = {tensor},
                     .reduction = reduction_of(options.reduceOp)});
  }
  return start_all({c10d::OpType::ALLREDUCE_COALESCED, "smdist:all_reduce"}, calls);
}

// outputs[rank][i] receives input i of that rank.
Backend::WorkPtr Backend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), "there are ", outputs.size(),
                    " lists of outputs for ", size_, " ranks. Give one for each rank.");
  std::vector<Call> calls;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Call call{.kind = Collective::kAllGather,
              .timeout = options.timeout,
              .inputs = {inputs[i]},
              .outputs = {}};
    for (const Tensors& of_rank : outputs) {
      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "a list of output tensors has ",
                        of_rank.size(), " elements, and there are ", inputs.size(),
                        " input tensors. Put one output for each input into each list.");
      call.outputs.push_back(of_rank[i]);
    }
    calls.push_back(std::move(call));
  }
  return start_all({c10d::OpType::ALLGATHER_COALESCED, "smdist:all_gather"}, calls);
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  check_same_count(inputs, outputs);
  std::vector<Call> calls;
  for (size_t i = 0; i < inputs.size(); ++i) {
    calls.push_back({.kind = Collective::kAllGather,
                     .timeout = options.timeout,
                     .inputs = {inputs[i]},
                     .outputs = {outputs[i]}});
  }
  return start_all({c10d::OpType::COALESCED, "smdist:all_gather_into_tensor_coalesced"}, calls);
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  check_same_count(inputs, outputs);
  std::vector<Call> calls;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_arithmetic(outputs[i]);
    calls.push_back({.kind = Collective::kReduceScatter,
                     .timeout = options.timeout,
                     .inputs = {inputs[i]},
                     .outputs = {outputs[i]},
                     .reduction = reduction_of(options.reduceOp)});
  }
  return start_all({c10d::OpType::COALESCED, "smdist:reduce_scatter_tensor_coalesced"}, calls);
}

Backend::WorkPtr Backend::send(Tensors& tensors, int to, int tag) {
  return start({c10d::OpType::SEND, "smdist:send"}, {.kind = Collective::kSend,
                                                     .timeout = kNoTimeout,
                                                     .inputs = {only(tensors)},
                                                     .outputs = {},
                                                     .peer = to,
                                                     .tag = tag});
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int from, int tag) {
  return receive({c10d::OpType::RECV, "smdist:recv"}, tensors, from, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return receive({c10d::OpType::RECVANYSOURCE, "smdist:recvAnySource"}, tensors, kAnyRank, tag);
}

Backend::WorkPtr Backend::receive(const Name& name, Tensors& tensors, int from, int tag) {
  return start(name, {.kind = Collective::kReceive,
                      .timeout = kNoTimeout,
                      .inputs = {},
                      .outputs = {only(tensors)},
                      .peer = from,
                      .tag = tag});
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool) {
  c10d::BarrierOptions given = options;
  if (given.timeout == kNoTimeout) given.timeout = std::chrono::milliseconds(1);
  const WorkPtr work = barrier(given);
  try {
    work->wait();
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "Rank ", rank_,
                     " timed out in monitoredBarrier: ", error.what());
  }
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  return at::empty({size}, options);
}

c10d::ErrorType Backend::getError() { return error_type_of(engine_->failure()); }

void Backend::abort() { engine_->abort("the group was aborted by rank " + std::to_string(rank_)); }

void Backend::shutdown() {
  if (before_shutdown_) before_shutdown_();
  std::shared_ptr<TwoLevelGroup> two_levels;
  {
    const std::lock_guard<std::mutex> lock(two_levels_mutex_);
    two_levels = two_levels_;
  }
  if (two_levels) two_levels->stop();
  const std::shared_ptr<StagingQueue> staging = is_level_ ? staging_ : find_staging(*engine_);
  if (is_level_ && staging) staging->stop();
  if (owns_engine_) {
    if (staging) staging->finish_awaited();
    engine_->shutdown();
    if (staging) staging->stop();
    const std::exception_ptr error = staging ? staging->take_late_error() : nullptr;
    if (error) std::rethrow_exception(translated(error));
    return;
  }
  // Operations that have not ended complete, and the group's number stays in use.
  if (staging && staging->has_unsubmitted()) return;
  try {
    engine_->remove_group(group_);
  } catch (const UsageError&) {
    // Operations are pending.
  }
}

}  // namespace smdist::torch_binding
