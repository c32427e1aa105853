// SPDX-License-Identifier: Apache-2.0
// One operation on its way, as torch sees it.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace smdist::torch_binding {

// Completed by the engine's completion thread, exactly once.
//
// DDP keeps only the Future and drops the Work, so the operation's callback
// owns the Work until then, and a failure completes the Future too.
//
// Thread safety: all methods may be called from any thread.
class OperationWork final : public c10d::Work {
 public:
  OperationWork(int rank, c10d::OpType type, std::vector<at::Tensor> results);

  // Called by the completion thread; null means success.
  void complete(std::exception_ptr error);
  void set_sequence(uint64_t sequence) { sequence_ = sequence; }

  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return result_future_; }
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  const std::vector<at::Tensor> results_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const c10::intrusive_ptr<c10::ivalue::Future> result_future_;
  std::atomic<uint64_t> sequence_{0};
};

// The core's errors as the exceptions torch's Python layer knows:
// ValueError for a wrong call, DistBackendError for everything else.
std::exception_ptr translated(std::exception_ptr error);

}  // namespace smdist::torch_binding
