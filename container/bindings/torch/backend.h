// SPDX-License-Identifier: Apache-2.0
// The torch.distributed backend "smdist", which converts calls to engine operations.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "messaging/descriptor.h"
#include "smdist/activity.h"
#include "smdist/engine.h"
#include "staging/staging_queue.h"
#include "tensors.h"
#include "two_level/level_decision.h"
#include "two_level/two_level_group.h"
#include "work.h"

namespace smdist::torch_binding {

// Return the statistics of the operations of all groups of this process. The object is never
// destroyed, because operations may end after other objects are destroyed.
Activity& activity();

// One process group: a numbered group of the engine, of which a process has only one.
//
// Thread safety: as c10d requires: collectives from one thread at a time; shutdown() and abort()
// from any thread.
class Backend final : public c10d::Backend {
 public:
  // group: number of the group in the engine. staging_options: those of the first group whose
  // tensors are on a device count. level_options: which collectives on device tensors take two
  // levels. owns_engine: shutdown() also shuts the engine down; set for the default process group.
  // before_shutdown: called first by shutdown(); may be empty. is_level: this is the level between
  // hosts of another backend, which counts the operations in activity(). It has a staging queue of
  // its own: its operations come in another order relative to those of other groups on each rank,
  // so they would wait for each other's slots.
  Backend(std::shared_ptr<Engine> engine, uint32_t group, int rank, int size,
          std::chrono::milliseconds timeout, StagingOptions staging_options,
          LevelOptions level_options, bool owns_engine, std::function<void()> before_shutdown,
          bool is_level = false);
  ~Backend() override;

  const std::string getBackendName() const override { return "smdist"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}  // every group counts from zero
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using Sizes = std::vector<int64_t>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // Do the same. The call fails on all ranks if `layout`, a hash of what the buffer has, differs
  // among them.
  WorkPtr allreduce_of_layout(at::Tensor& tensor, const c10d::AllreduceOptions& options,
                              uint64_t layout);
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, Sizes& output_sizes,
                        Sizes& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Start several operations with one Work, which completes when all have completed.
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Run a barrier. If it times out, raise an error that names all ranks that have not arrived, so
  // wait_all_ranks has no effect.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Allocate memory aligned to a cache line, like the shards of a sum.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  // Return the kind of the engine's failure.
  c10d::ErrorType getError() override;

  void abort() override;
  void shutdown() override;

 private:
  // Type of an operation in torch, and its title in torch's profiler.
  struct Name {
    c10d::OpType type;
    const char* title;
  };
  // Arguments of one operation; filled in by the methods above.
  struct Call {
    Collective kind;
    std::chrono::milliseconds timeout;
    Tensors inputs;
    Tensors outputs;
    Reduction reduction{ReduceOp::kSum, 1};
    int root = 0;
    int peer = 0;
    int tag = 0;
    uint64_t layout = 0;   // hash of what the buffers have, which ranks compare
    bool is_async = true;  // false: the caller waits for the operation at once
    std::shared_ptr<CallNumber> number = nullptr;  // null: the operation is the whole call
  };

  WorkPtr start(const Name& name, Call call);
  WorkPtr start_all(const Name& name, std::vector<Call> calls);
  void submit(const Call& call, const c10::intrusive_ptr<OperationWork>& work, bool may_await);
  Operation operation_of(const Call& call, int* source) const;
  std::function<void()> submission(const Operation& operation,
                                   const c10::intrusive_ptr<OperationWork>& work) const;
  WorkPtr stage_all(const Name& name, const std::vector<Call>& calls, const Tensors& shown,
                    const Tensors& outputs, c10::Device device);
  void stage(const Call& call, const c10::intrusive_ptr<StagedWork>& work, StagingQueue& staging);
  WorkPtr start_in_two_levels(const Name& name, const std::vector<Call>& calls,
                              const Tensors& shown, const Tensors& outputs, c10::Device device);
  std::shared_ptr<TwoLevelGroup> two_level_group(c10::Device device);
  LevelGroups groups_of(const LevelDecision& decision, c10::Device device);
  std::vector<std::string> exchange(const std::string& text);
  Descriptor check_lengths(const Call& call) const;
  Descriptor check(Operation operation, std::vector<Span> inputs, std::vector<Span> outputs) const;
  void share_number(std::vector<Call>& calls) const;
  WorkPtr receive(const Name& name, Tensors& tensors, int from, int tag);
  WorkPtr allreduce_sparse_tensor(const at::Tensor& tensor, const c10d::AllreduceOptions& options);

  const std::shared_ptr<Engine> engine_;
  const uint32_t group_;
  const StagingOptions staging_options_;
  const LevelOptions level_options_;
  const bool owns_engine_;
  const std::function<void()> before_shutdown_;
  const bool is_level_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> sequence_{0};
  std::shared_ptr<StagingQueue> staging_;  // null until a tensor on a device is passed
  bool is_level_decided_ = false;          // used by calls of collectives only
  std::mutex two_levels_mutex_;
  std::shared_ptr<TwoLevelGroup> two_levels_;  // guarded by two_levels_mutex_; null: staged
};

}  // namespace smdist::torch_binding
