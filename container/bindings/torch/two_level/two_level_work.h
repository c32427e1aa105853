// SPDX-License-Identifier: Apache-2.0
// torch's Work object for collectives in two levels.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "smdist/engine.h"

namespace smdist::torch_binding {

// One Work for one or more collectives in two levels. It completes when the last level of all of
// them has been queued on the device. wait() blocks the host until then, makes the calling thread's
// current stream wait for the results, and returns without waiting for them itself.
//
// A wait() that did not block the host could cause a deadlock: see TwoLevelGroup.
//
// Thread safety: all methods may be called from any thread.
class TwoLevelWork final : public c10d::Work {
 public:
  using EventPtr = std::shared_ptr<const c10::Event>;

  // title: name for torch's profiler. shown: tensors whose shapes the profiler shows.
  // result_stream: the stream on which the last level and the copies of results are complete.
  TwoLevelWork(std::shared_ptr<Engine> engine, int rank, c10d::OpType type, const char* title,
               const std::vector<at::Tensor>& shown, std::vector<at::Tensor> results,
               c10::Stream result_stream, size_t operations);

  // Record that one collective has been queued, or has failed. error: null if it was queued. Call
  // once for each. The results are complete on the device when `on_device` is. Returns whether this
  // was the last one. Then the Work is complete, and the caller has to call complete_futures().
  bool complete_part(const std::exception_ptr& error, const EventPtr& on_device);

  // Complete the Futures. Their callbacks are called here, and may wait for other operations.
  void complete_futures();

  void set_sequence(uint64_t sequence) { sequence_ = sequence; }

  // Return whether the results are complete on the device.
  bool isCompleted() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::vector<at::Tensor> results_;
  const c10::Stream result_stream_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const c10::intrusive_ptr<c10::ivalue::Future> result_future_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> has_future_{false};  // a Future was requested
  std::mutex parts_mutex_;
  size_t incomplete_parts_;   // guarded by parts_mutex_, as are the next two
  std::exception_ptr error_;  // error of the first part that failed
  EventPtr on_device_;        // the last one recorded
};

}  // namespace smdist::torch_binding
