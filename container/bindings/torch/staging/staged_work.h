// SPDX-License-Identifier: Apache-2.0
// torch's Work object for operations on the tensors of a device.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "../work.h"
#include "staging_device.h"

namespace smdist::torch_binding {

// One Work for one or more operations on tensors of one device. It completes when the copies of all
// results to the device have been queued.
//
// wait() makes the calling thread's current stream wait for the results, and returns. Before the
// Work has completed, the stream waits for a signal, which is set behind the copies of the results.
// On a device without signals, wait() blocks the host until the Work has completed. So do wait()
// with a timeout, and a receive from any rank, because its caller reads next from which rank.
//
// With signals the Future is complete at once, as NCCL's is: streams wait for its results.
//
// If an operation fails after wait() has returned, floating-point results become NaN, the streams
// go on, and the next call raises the error.
//
// Thread safety: all methods may be called from any thread.
class StagedWork : public c10d::Work, public EngineWork {
 public:
  // title: name for torch's profiler. shown: tensors whose shapes the profiler shows.
  // result_stream: the stream on which the results are complete.
  StagedWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& shown,
             std::vector<at::Tensor> results, const DeviceContext& context,
             const c10::Stream& result_stream, size_t operations);
  ~StagedWork() override;

  // Queue the signal behind the copies of the results, if this is the last operation and none has
  // failed. Call before complete_part(), from one thread. Returns the signal if it was queued.
  std::optional<StreamSignal> queue_signal();

  // Return whether all operations have ended, and one of them with an error.
  bool has_failed() { return Work::isCompleted() && error_ != nullptr; }

  // Record that one operation has ended. error: null if it succeeded. Call once for each operation.
  // The results are complete on the device when `results_copied` is; null if nothing was copied.
  // Returns whether all operations have ended. Then the Work is complete, and the caller has to
  // call complete_futures().
  bool complete_part(const std::exception_ptr& error, const CopyStreams::EventPtr& results_copied);

  // Complete the Futures. Their callbacks are called here, and may wait for other operations.
  void complete_futures();

  // Let the streams go on that wait for a Work that has failed. Requires: it has a signal, and the
  // caller's work before the call is complete. writes_results: the results are made NaN first.
  // Returns an event that is complete when the streams go on.
  CopyStreams::EventPtr release_streams(bool writes_results);
  // Return the signal for which streams wait, if there is one.
  const std::optional<StreamSignal>& signal() const { return signal_; }

  c10::Device device() const { return context_.streams.device(); }

  // Return the memory to which a receive writes the sender's rank.
  int* source() { return &source_; }
  void set_sequence(uint64_t sequence) { sequence_ = sequence; }

  std::exception_ptr engine_error() override;
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

 protected:
  // Return whether streams wait for the Work, which has not ended.
  bool is_awaited_by_streams();

 private:
  bool block_stream(const c10::Stream& stream);
  void mark_future_completed(const c10::Stream& stream);

  const DeviceContext context_;
  const c10::Stream result_stream_;
  const std::vector<at::Tensor> results_;
  const std::optional<StreamSignal> signal_;  // none: wait() blocks the host
  const bool has_early_future_;               // the Future is complete before the Work
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const c10::intrusive_ptr<c10::ivalue::Future> result_future_;
  std::atomic<uint64_t> sequence_{0};
  int source_ = -1;
  std::atomic<bool> has_future_{false};  // a Future was requested
  std::once_flag early_future_;
  std::mutex parts_mutex_;
  size_t incomplete_parts_;       // guarded by parts_mutex_, as are the next three
  std::exception_ptr error_;      // error of the first part that failed
  CopyStreams::EventPtr copied_;  // the last one recorded
  bool has_waiters_ = false;      // a stream waits, and its caller knows of no error
};

}  // namespace smdist::torch_binding
