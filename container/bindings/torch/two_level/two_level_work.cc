// SPDX-License-Identifier: Apache-2.0
#include "two_level_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "../work.h"

namespace smdist::torch_binding {

TwoLevelWork::TwoLevelWork(std::shared_ptr<Engine> engine, int rank, c10d::OpType type,
                           const char* title, const std::vector<at::Tensor>& shown,
                           std::vector<at::Tensor> results, c10::Stream result_stream,
                           size_t operations)
    : Work(rank, type, title, shown),
      engine_(std::move(engine)),
      results_(std::move(results)),
      result_stream_(result_stream),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          std::vector<c10::Device>{result_stream.device()})),
      result_future_(c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get())),
      incomplete_parts_(operations) {}

bool TwoLevelWork::complete_part(const std::exception_ptr& error, const EventPtr& on_device) {
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    if (error && !error_) error_ = error;
    if (on_device) on_device_ = on_device;
    if (--incomplete_parts_ > 0) return false;
  }
  finish(translated(error_));
  return true;
}

// The Future records the stream of the results: a wait for the Future waits for that stream, too.
void TwoLevelWork::complete_futures() {
  if (error_) {
    future_->setError(translated(error_));
  } else {
    const c10::StreamGuard guard(result_stream_);
    future_->markCompleted(c10::IValue(results_));
  }
  result_future_->markCompleted(c10::IValue(static_cast<int64_t>(result_of(error_))));
}

c10::intrusive_ptr<c10::ivalue::Future> TwoLevelWork::getFuture() {
  has_future_ = true;
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> TwoLevelWork::getFutureResult() {
  has_future_ = true;
  return result_future_;
}

bool TwoLevelWork::isCompleted() {
  if (!Work::isCompleted()) return false;
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return !on_device_ || on_device_->query();
}

// Raises the engine's error also if the last level was queued before it: without the other ranks
// the results may never be complete.
bool TwoLevelWork::wait(std::chrono::milliseconds timeout) {
  Work::wait(timeout);               // calls synchronize(), or raises the error
  if (has_future_) future_->wait();  // and its callbacks, which may still run
  if (isCompleted()) return true;
  if (const std::exception_ptr failure = engine_->failure()) {
    std::rethrow_exception(translated(failure));
  }
  return true;
}

void TwoLevelWork::synchronize() {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  if (!on_device_) return;
  on_device_->block(
      c10::impl::VirtualGuardImpl(result_stream_.device_type()).getStream(result_stream_.device()));
}

}  // namespace smdist::torch_binding
