// SPDX-License-Identifier: Apache-2.0
// Queue of operations on device tensors, which are staged through pinned host memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "piece_table.h"
#include "result_copies.h"
#include "smdist/engine.h"

namespace smdist::torch_binding {

// Moves operations on device tensors through an engine, in pieces that overlap: while the engine
// sums one piece, the next ones are copied to the host, and earlier results to the device.
//
// A thread copies pieces to the host, and submits each to the engine when its copy is complete, in
// the order of the calls; so all ranks submit the same operations in the same order. ResultCopies
// copies the results to the device.
//
// One engine has one queue. If a copy fails, the engine is aborted, so that all ranks raise an
// error.
//
// Thread safety: all methods may be called from any thread.
class StagingQueue final {
 public:
  StagingQueue(std::shared_ptr<Engine> engine, StagingOptions options);
  ~StagingQueue();
  StagingQueue(const StagingQueue&) = delete;
  StagingQueue& operator=(const StagingQueue&) = delete;

  // Return the context of a device, which is made in the first call.
  const DeviceContext& context_of(c10::Device device);

  // Queue an operation behind the work of the calling thread's current stream, and return at once.
  // copy_back: copies from contiguous outputs to those of the caller. ended: called when the
  // operation has ended, from any thread. Throws UsageError after stop(), the error of the engine
  // if it has failed, and the error of an earlier operation that has failed after its wait().
  void stage(DeviceOperation operation, std::vector<Copy> copy_back,
             c10::intrusive_ptr<StagedWork> work, std::function<void()> ended);

  // Raise the error of an earlier operation whose wait() had returned before the error was known,
  // once. Call it after an operation was queued, which so keeps its place in the order of calls:
  // ranks learn of an error between different calls.
  void raise_late_error();

  // Queue a call behind the operations that are not submitted yet, or return false if there are
  // none. So operations on host tensors keep their place in the order of all calls.
  bool run_in_order(std::function<void()> call);

  // Return whether an operation is not submitted to the engine yet.
  bool has_unsubmitted();

  // End the threads; operations that have not ended yet fail. Requires: the engine was shut down,
  // or no operation is pending.
  void stop();

  // Block until no stream waits for an operation that has not ended. Then the engine may be shut
  // down: wait() has returned to the callers of these operations.
  void finish_awaited();

  // Return the error of an operation that has failed after its wait(), if no call has raised it.
  std::exception_ptr take_late_error() { return awaited_->take_error(); }

  // Let every later use in a forked child raise an error. The object may not be destroyed there.
  void disable_in_child() { is_in_child_ = true; }

 private:
  // A call in the queue: an operation of which some pieces are not copied yet, or a function.
  struct Entry {
    std::shared_ptr<StagedOperation> staged;
    size_t next_piece = 0;
    std::function<void()> call;
  };

  StagingDevice& device_of(c10::Device device);
  void raise_failure();
  void allocate_undivided(StagedOperation& staged);
  // Steps of the thread that copies to the host:
  void send();
  std::unique_ptr<Entry> next_entry(bool may_wait);
  bool copy_piece(const Entry& entry, std::deque<PieceInFlight>& copying);
  void fail_piece(PieceInFlight piece, std::deque<PieceInFlight>& copying,
                  const std::exception_ptr& error);
  at::Tensor memory_for(StagedOperation& staged, size_t piece, bool may_wait);
  void check_running() const;
  void submit_oldest(std::deque<PieceInFlight>& copying);
  void record_submitted();

  const std::shared_ptr<Engine> engine_;
  const StagingOptions options_;
  const std::shared_ptr<AwaitedWorks> awaited_;
  std::atomic<bool> is_in_child_{false};
  std::mutex stop_mutex_;  // held while the threads end; acquired before the others
  std::mutex devices_mutex_;
  std::map<c10::Device, std::unique_ptr<StagingDevice>,
           bool (*)(const c10::Device&, const c10::Device&)>
      devices_;  // guarded by devices_mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Entry>> entries_;  // guarded by mutex_, as are the next two
  size_t num_unsubmitted_ = 0;                  // counts an entry until its end is submitted
  bool is_stopped_ = false;

  const std::shared_ptr<PieceTable> pieces_;
  ResultCopies result_copies_;
  std::thread sender_;
};

}  // namespace smdist::torch_binding
