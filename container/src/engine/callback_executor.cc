// SPDX-License-Identifier: Apache-2.0
#include "engine/callback_executor.h"

#include <utility>

namespace smdist {
namespace {

constexpr std::chrono::milliseconds kStuck{20};
constexpr size_t kMaxThreads = 64;

}  // namespace

void CallbackExecutor::start() {
  MutexLock lock(state_->mutex);
  for (int i = 0; i < 2; ++i) {
    state_->threads.emplace_back([state = state_] { run(state); });
  }
}

void CallbackExecutor::push(Operation& operation, std::exception_ptr error) {
  if (operation.ended) operation.ended(error);
  if (!operation.done) return;
  {
    MutexLock lock(state_->mutex);
    state_->queue.push_back({std::move(operation.done), std::move(error)});
  }
  state_->changed.notify_one();
}

void CallbackExecutor::finish() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(state_->mutex);
    state_->is_finished = true;
    threads.swap(state_->threads);
  }
  state_->changed.notify_all();
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();  // we are in a callback: its thread ends when it returns
    } else {
      thread.join();
    }
  }
}

void CallbackExecutor::run(const std::shared_ptr<SharedQueue>& state) {
  while (std::optional<Callback> callback = next(state)) {
    call(std::move(*callback));
    MutexLock lock(state->mutex);
    --state->num_running;
  }
}

// Blocks until a callback may run, and returns it; none if the thread has to end.
std::optional<CallbackExecutor::Callback> CallbackExecutor::next(
    const std::shared_ptr<SharedQueue>& state) {
  MutexLock lock(state->mutex);
  while (true) {
    if (state->queue.empty()) {
      if (state->is_finished) return std::nullopt;
      state->changed.wait(state->mutex);
      continue;
    }
    const Clock::time_point turn = state->latest_start + kStuck;
    if (state->num_running == 0) break;
    if (Clock::now() >= turn) {
      const bool may_grow = !state->is_finished && state->threads.size() < kMaxThreads;
      if (may_grow) state->threads.emplace_back([state] { run(state); });  // for the next one
      break;
    }
    state->changed.wait_until(state->mutex, turn);
  }
  Callback callback = std::move(state->queue.front());
  state->queue.pop_front();
  ++state->num_running;
  state->latest_start = Clock::now();
  return callback;
}

// Calls a callback. It must not throw; if it does, the exception is ignored, so that the other
// callbacks run.
void CallbackExecutor::call(Callback callback) {
  try {
    callback.done(std::move(callback.error));
  } catch (...) {
  }
}

}  // namespace smdist
