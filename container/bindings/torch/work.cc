// SPDX-License-Identifier: Apache-2.0
#include "work.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "smdist/errors.h"

namespace smdist::torch_binding {
namespace {

template <typename TorchError>
std::exception_ptr as(const std::exception& error) {
  return std::make_exception_ptr(
      TorchError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error.what()));
}

}  // namespace

OperationWork::OperationWork(const std::shared_ptr<Engine>& engine, int rank, c10d::OpType type,
                             const char* title, const std::vector<at::Tensor>& shown,
                             std::vector<at::Tensor> results, size_t operations)
    : Work(rank, type, title, shown),
      engine_(engine),
      completion_(std::make_shared<Completion>(operations)),
      results_(std::move(results)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))),
      result_future_(c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get())),
      incomplete_parts_(operations) {
  if (operations == 0) finish_once();
}

void OperationWork::copy_back_at_end(const StagedTensors& outputs) {
  if (outputs.is_copied()) copied_.push_back(outputs);
}

void OperationWork::complete_part() {
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    if (--incomplete_parts_ > 0) return;
  }
  finish_once();
}

// Finishes the Work, unless another thread does so or has done so: wait() then waits for the
// Future. (std::call_once would make a system call for every Work.)
void OperationWork::finish_once() {
  if (is_finishing_.exchange(true)) return;
  std::exception_ptr error = completion_->error();
  try {
    if (!error) {
      for (const StagedTensors& outputs : copied_) outputs.copy_back();
    }
  } catch (...) {
    error = std::current_exception();
  }
  copied_.clear();
  finish_all(error);
}

c10::intrusive_ptr<c10::ivalue::Future> OperationWork::getFuture() {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  has_future_ = true;
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> OperationWork::getFutureResult() {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  has_future_ = true;
  return result_future_;
}

// The Work completes before its Future, because a callback of the Future may wait for the Work.
void OperationWork::finish_all(std::exception_ptr error) {
  const auto result = static_cast<int64_t>(result_of(error));
  error = translated(error);
  finish(error);
  if (error) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(results_));
  }
  result_future_->markCompleted(c10::IValue(result));
}

bool OperationWork::wait(std::chrono::milliseconds timeout) {
  TORCH_CHECK_WITH(DistBackendError, await_end(timeout), "operation ", sequence_.load(),
                   " did not complete within the timeout of ", timeout.count(),
                   " ms that was passed to wait(). It continues in the background");
  std::unique_lock<std::mutex> lock(parts_mutex_);
  const bool has_future = has_future_;
  lock.unlock();
  if (!has_future) finish_once();
  future_->wait();  // wait() ends after the Future is complete; its callbacks may still run
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

// Waits until all operations have ended, or until the timeout expires. Returns whether all have
// ended. If the engine no longer exists, they have.
bool OperationWork::await_end(std::chrono::milliseconds timeout) {
  const auto never = Completion::Clock::time_point::max();
  const auto until = timeout == kNoTimeout ? never : Completion::Clock::now() + timeout;
  if (completion_->is_done()) return true;
  const std::shared_ptr<Engine> engine = engine_.lock();
  return engine ? engine->wait(*completion_, until) : completion_->wait_until(until);
}

c10d::WorkResult result_of(const std::exception_ptr& error) {
  if (!error) return c10d::WorkResult::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError&) {
    return c10d::WorkResult::TIMEOUT;
  } catch (const PeerError&) {
    return c10d::WorkResult::COMM_ERROR;
  } catch (...) {
    return c10d::WorkResult::UNKNOWN;
  }
}

c10d::ErrorType error_type_of(const std::exception_ptr& error) {
  if (!error) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const PeerError&) {
    return c10d::ErrorType::REMOTE_ERROR;
  } catch (...) {
    return c10d::ErrorType::COMM_ERROR;
  }
}

std::exception_ptr translated(std::exception_ptr error) {
  if (!error) return error;
  try {
    std::rethrow_exception(error);
  } catch (const UsageError& usage) {
    return as<c10::ValueError>(usage);
  } catch (const Error& known) {
    return as<c10::DistBackendError>(known);
  } catch (...) {
    return error;
  }
}

}  // namespace smdist::torch_binding
