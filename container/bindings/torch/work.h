// SPDX-License-Identifier: Apache-2.0
// torch's Work objects for operations in flight.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "smdist/engine.h"
#include "tensors.h"

namespace smdist::torch_binding {

// Interface of a Work that keeps the engine's error, which has a fault, beside torch's error of it.
class EngineWork {
 public:
  virtual ~EngineWork() = default;

  // Return the first error of the operations that have ended; null if none has failed.
  virtual std::exception_ptr engine_error() = 0;
};

// One Work for one or more operations. It finishes when all operations have ended. A thread in
// wait() runs the engine if no other thread does, and then finishes the Work itself. But if a
// Future was requested, the engine's callback threads finish the Work, because they run the
// callbacks of the Future.
//
// DDP keeps only the Future and drops the Work. So the operation's callback owns the Work until the
// operation ends, and a failure also completes the Future.
//
// Thread safety: all methods may be called from any thread.
class OperationWork final : public c10d::Work, public EngineWork {
 public:
  // title: name for torch's profiler. shown: tensors whose shapes the profiler shows.
  OperationWork(const std::shared_ptr<Engine>& engine, int rank, c10d::OpType type,
                const char* title, const std::vector<at::Tensor>& shown,
                std::vector<at::Tensor> results, size_t operations);

  // Return the completion of all operations; its error is the error of the Work.
  const std::shared_ptr<Completion>& completion() const { return completion_; }

  // Store the outputs whose results have to be copied back to tensors that are not contiguous. Call
  // before the operation starts.
  void copy_back_at_end(const StagedTensors& outputs);

  // Record that one operation does not use its tensors any more. Call once for each operation.
  void complete_part();

  // Return the memory to which a receive writes the sender's rank.
  int* source() { return &source_; }
  void set_sequence(uint64_t sequence) { sequence_ = sequence; }

  std::exception_ptr engine_error() override { return completion_->error(); }
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
  const std::shared_ptr<Completion> completion_;
  const std::vector<at::Tensor> results_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const c10::intrusive_ptr<c10::ivalue::Future> result_future_;
  std::atomic<uint64_t> sequence_{0};
  int source_ = -1;
  std::mutex parts_mutex_;
  size_t incomplete_parts_;
  std::vector<StagedTensors> copied_;      // constant while the operations run
  bool has_future_ = false;                // a Future was requested
  std::atomic<bool> is_finishing_{false};  // a thread finishes the Work, or has done so
};

// Return the result of an operation in torch's terms. error: null if it succeeded.
c10d::WorkResult result_of(const std::exception_ptr& error);

// Return the kind of an engine's failure in torch's terms. error: null if there is no failure.
c10d::ErrorType error_type_of(const std::exception_ptr& error);

// Convert an error of the core to an exception that torch's Python layer understands: ValueError
// for a wrong call, DistBackendError for all others.
std::exception_ptr translated(std::exception_ptr error);

}  // namespace smdist::torch_binding
