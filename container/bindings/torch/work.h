// SPDX-License-Identifier: Apache-2.0
// Operations on their way, as torch sees them.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "smdist/engine.h"
#include "tensors.h"

namespace smdist::torch_binding {

// One Work for one or more operations, each of which completes it in part, on the
// engine's completion threads. Who waits for the Work moves the engine's bytes meanwhile,
// if nobody else does, and then finishes it himself, unless somebody has its Future,
// whose callbacks are for the engine's threads.
//
// DDP keeps only the Future and drops the Work, so the operation's callback
// owns the Work until then, and a failure completes the Future too.
//
// Thread safety: all methods may be called from any thread.
class OperationWork final : public c10d::Work {
 public:
  // title: for torch's profiler, with the shapes of these tensors.
  OperationWork(const std::shared_ptr<Engine>& engine, int rank, c10d::OpType type,
                const char* title, const std::vector<at::Tensor>& shown,
                std::vector<at::Tensor> results, size_t operations);

  // What operations end; its error is the Work's.
  const std::shared_ptr<Ending>& ending() const { return ending_; }

  // Call before the operation starts.
  void copy_back_at_end(const Staged& outputs);

  // An operation that ending() knows of needs its tensors no more. Call once for each.
  void complete_part();

  // Where a receive writes who sent.
  int* source() { return &source_; }
  void set_sequence(uint64_t sequence) { sequence_ = sequence; }

  bool wait(std::chrono::milliseconds timeout) override;
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void finish_once();
  void finish_all(std::exception_ptr error);
  bool await_end(std::chrono::milliseconds timeout);

  const std::weak_ptr<Engine> engine_;
  const std::shared_ptr<Ending> ending_;
  const std::vector<at::Tensor> results_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const c10::intrusive_ptr<c10::ivalue::Future> result_future_;
  std::atomic<uint64_t> sequence_{0};
  int source_ = -1;
  std::mutex parts_mutex_;
  size_t incomplete_parts_;
  std::vector<Staged> copied_;  // constant once the operations have started, until they end
  bool has_future_ = false;     // somebody has
  std::once_flag finished_;
};

// What torch's watchdogs are told of the engine's end; null: it goes on.
c10d::ErrorType error_type_of(const std::exception_ptr& error);

// The core's errors as the exceptions torch's Python layer knows:
// ValueError for a wrong call, DistBackendError for everything else.
std::exception_ptr translated(std::exception_ptr error);

}  // namespace smdist::torch_binding
