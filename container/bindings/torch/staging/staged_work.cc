// SPDX-License-Identifier: Apache-2.0
#include "staged_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "../work.h"

namespace smdist::torch_binding {

StagedWork::StagedWork(int rank, c10d::OpType type, const char* title,
                       const std::vector<at::Tensor>& shown, std::vector<at::Tensor> results,
                       const CopyStreams& streams, size_t operations)
    : Work(rank, type, title, shown),
      streams_(streams),
      results_(std::move(results)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                   std::vector<c10::Device>{streams.device()})),
      result_future_(c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get())),
      incomplete_parts_(operations) {
  if (operations > 0) return;
  finish();
  complete_futures();
}

bool StagedWork::complete_part(const std::exception_ptr& error,
                               const CopyStreams::EventPtr& results_copied) {
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    if (error && !error_) error_ = error;
    if (results_copied) copied_ = results_copied;
    if (--incomplete_parts_ > 0) return false;
  }
  finish(translated(error_));
  return true;
}

// The Future records the stream with the copies: a wait for the Future waits for that stream, too.
void StagedWork::complete_futures() {
  if (error_) {
    future_->setError(translated(error_));
  } else {
    const c10::StreamGuard guard(streams_.to_device());
    future_->markCompleted(c10::IValue(results_));
  }
  result_future_->markCompleted(c10::IValue(static_cast<int64_t>(result_of(error_))));
}

c10::intrusive_ptr<c10::ivalue::Future> StagedWork::getFuture() {
  has_future_ = true;
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> StagedWork::getFutureResult() {
  has_future_ = true;
  return result_future_;
}

bool StagedWork::isCompleted() {
  if (!Work::isCompleted()) return false;
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return !copied_ || copied_->query();
}

bool StagedWork::wait(std::chrono::milliseconds timeout) {
  Work::wait(timeout);               // calls synchronize(), or raises the error
  if (has_future_) future_->wait();  // and its callbacks, which may still run
  return true;
}

void StagedWork::synchronize() {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  if (!copied_) return;
  copied_->block(
      c10::impl::VirtualGuardImpl(streams_.device().type()).getStream(streams_.device()));
}

}  // namespace smdist::torch_binding
