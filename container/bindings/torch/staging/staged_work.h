// SPDX-License-Identifier: Apache-2.0
// torch's Work object for operations on the tensors of a device.
#pragma once

#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "copy_streams.h"

namespace smdist::torch_binding {

// One Work for one or more operations on tensors of one device. It completes when the copies of all
// results to the device have been queued. Then wait() makes the calling thread's current stream
// wait for these copies, and returns without waiting for them itself.
//
// Thread safety: all methods may be called from any thread.
class StagedWork final : public c10d::Work {
 public:
  // title: name for torch's profiler. shown: tensors whose shapes the profiler shows.
  StagedWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& shown,
             std::vector<at::Tensor> results, const CopyStreams& streams, size_t operations);

  // Record that one operation has ended. error: null if it succeeded. Call once for each operation.
  // The results are complete on the device when `results_copied` is; null if nothing was copied.
  // Returns whether all operations have ended. Then the Work is complete, and the caller has to
  // call complete_futures().
  bool complete_part(const std::exception_ptr& error, const CopyStreams::EventPtr& results_copied);

  // Complete the Futures. Their callbacks are called here, and may wait for other operations.
  void complete_futures();

  c10::Device device() const { return streams_.device(); }

  // Return the memory to which a receive writes the sender's rank.
  int* source() { return &source_; }
  void set_sequence(uint64_t sequence) { sequence_ = sequence; }

  // Return whether the results are complete on the device.
  bool isCompleted() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override { wait(kNoTimeout); }
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  const CopyStreams streams_;
  const std::vector<at::Tensor> results_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const c10::intrusive_ptr<c10::ivalue::Future> result_future_;
  std::atomic<uint64_t> sequence_{0};
  int source_ = -1;
  std::atomic<bool> has_future_{false};  // a Future was requested
  std::mutex parts_mutex_;
  size_t incomplete_parts_;       // guarded by parts_mutex_, as are the next two
  std::exception_ptr error_;      // error of the first part that failed
  CopyStreams::EventPtr copied_;  // the last one recorded
};

}  // namespace smdist::torch_binding
