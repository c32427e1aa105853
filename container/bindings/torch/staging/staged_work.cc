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
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          std::vector<c10::Device>{streams.device()})),
      result_future_(c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get())),
      incomplete_parts_(operations) {
  if (operations == 0) finish_all();
}

void StagedWork::complete_part(std::exception_ptr error,
                               const CopyStreams::EventPtr& results_copied) {
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    if (error && !error_) error_ = error;
    if (results_copied) copied_ = results_copied;
    if (--incomplete_parts_ > 0) return;
  }
  finish_all();
}

// Completes the Work before its Future, because a callback of the Future may wait for the Work. The
// Future records the stream with the copies, for those who wait for it or continue with it.
void StagedWork::finish_all() {
  const auto result = static_cast<int64_t>(result_of(error_));
  const std::exception_ptr error = translated(error_);
  finish(error);
  if (error) {
    future_->setError(error);
  } else {
    const c10::StreamGuard guard(streams_.to_device());
    future_->markCompleted(c10::IValue(results_));
  }
  result_future_->markCompleted(c10::IValue(result));
}

bool StagedWork::isCompleted() {
  if (!Work::isCompleted()) return false;
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return !copied_ || copied_->query();
}

bool StagedWork::wait(std::chrono::milliseconds timeout) {
  Work::wait(timeout);  // calls synchronize(), or raises the error
  return true;
}

void StagedWork::synchronize() {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  if (!copied_) return;
  copied_->block(c10::impl::VirtualGuardImpl(streams_.device().type()).getStream(streams_.device()));
}

}  // namespace smdist::torch_binding
