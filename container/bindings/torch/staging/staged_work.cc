// SPDX-License-Identifier: Apache-2.0
#include "staged_work.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>
#include <utility>

namespace smdist::torch_binding {
namespace {

// Returns a stream of the usual priority, on which no copy of staging waits.
c10::Stream side_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

std::optional<StreamSignal> signal_for(c10d::OpType type, const DeviceContext& context,
                                       size_t operations) {
  if (context.signals == nullptr || operations == 0) return std::nullopt;
  if (type == c10d::OpType::RECVANYSOURCE) return std::nullopt;
  return context.signals->take();
}

}  // namespace

StagedWork::StagedWork(int rank, c10d::OpType type, const char* title,
                       const std::vector<at::Tensor>& shown, std::vector<at::Tensor> results,
                       const DeviceContext& context, const c10::Stream& result_stream,
                       size_t operations)
    : Work(rank, type, title, shown),
      context_(context),
      result_stream_(result_stream),
      results_(std::move(results)),
      signal_(signal_for(type, context, operations)),
      has_early_future_(signal_.has_value() && !results_.empty()),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          std::vector<c10::Device>{context.streams.device()})),
      result_future_(c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get())),
      incomplete_parts_(operations) {
  if (operations > 0) return;
  finish();
  complete_futures();
}

// Gives back the signal of a Work whose operations did not all start: nothing sets it any more.
StagedWork::~StagedWork() {
  if (!signal_ || incomplete_parts_ == 0) return;
  if (has_waiters_) context_.awaited->end(nullptr);
  signal_->set();
  context_.signals->give_back(*signal_);
}

std::optional<StreamSignal> StagedWork::queue_signal() {
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    if (!signal_ || error_ || incomplete_parts_ > 1) return std::nullopt;
  }
  context_.signals->set_behind(result_stream_, *signal_);
  return signal_;
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
  if (has_waiters_) context_.awaited->end(error_);
  return true;
}

std::exception_ptr StagedWork::engine_error() {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return error_;
}

void StagedWork::complete_futures() {
  if (!has_early_future_) {
    if (error_) {
      future_->setError(translated(error_));
    } else {
      mark_future_completed(result_stream_);
    }
  }
  result_future_->markCompleted(c10::IValue(static_cast<int64_t>(result_of(error_))));
}

// The Future records the stream: a wait for the Future waits for the stream's work, too.
void StagedWork::mark_future_completed(const c10::Stream& stream) {
  const c10::StreamGuard guard(stream);
  future_->markCompleted(c10::IValue(results_));
}

CopyStreams::EventPtr StagedWork::release_streams(bool writes_results) {
  const c10::InferenceMode no_autograd;
  const c10::Stream stream = result_stream_;  // behind the copies of some results
  const c10::StreamGuard guard(stream);
  for (const at::Tensor& result : results_) {
    if (!writes_results || !(result.is_floating_point() || result.is_complex())) continue;
    result.variable_data().fill_(std::numeric_limits<double>::quiet_NaN());
  }
  context_.signals->set_behind(stream, *signal_);
  return record_event(stream);
}

c10::intrusive_ptr<c10::ivalue::Future> StagedWork::getFuture() {
  has_future_ = true;
  if (!has_early_future_) return future_;
  std::call_once(early_future_, [this] {
    const c10::Stream stream = side_stream(device());
    if (block_stream(stream)) {
      mark_future_completed(stream);
    } else if (error_) {
      future_->setError(translated(error_));
    } else {
      mark_future_completed(result_stream_);
    }
  });
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

// Lets a stream wait for the signal. Returns false if the Work needs none any more, or has none.
bool StagedWork::block_stream(const c10::Stream& stream) {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  if (!signal_ || incomplete_parts_ == 0) return false;
  context_.signals->wait(stream, *signal_);
  if (!std::exchange(has_waiters_, true)) context_.awaited->begin();
  return true;
}

bool StagedWork::is_awaited_by_streams() {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return has_waiters_ && incomplete_parts_ > 0;
}

bool StagedWork::wait(std::chrono::milliseconds timeout) {
  const c10::Stream current = context_.streams.current();
  if (timeout == kNoTimeout && block_stream(current)) return true;
  try {
    Work::wait(timeout);  // calls synchronize(), or raises the error
  } catch (...) {
    if (exception()) context_.awaited->take_error();
    throw;
  }
  if (has_future_ && !has_early_future_) future_->wait();  // and its callbacks, which may still run
  return true;
}

void StagedWork::synchronize() {
  const c10::Stream current = context_.streams.current();
  if (block_stream(current)) return;
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  if (copied_) copied_->block(current);
}

}  // namespace smdist::torch_binding
