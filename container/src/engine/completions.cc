// SPDX-License-Identifier: Apache-2.0
#include "engine/completions.h"

#include <utility>

namespace smdist {
namespace {

constexpr std::chrono::milliseconds kStuck{20};
constexpr size_t kMaxThreads = 64;

}  // namespace

void Completions::start() {
  MutexLock lock(state_->mutex);
  for (int i = 0; i < 2; ++i) {
    state_->threads.emplace_back([state = state_] { run(state); });
  }
}

void Completions::push(Operation& operation, std::exception_ptr error) {
  if (operation.ended) operation.ended(error);
  if (!operation.done) return;  // who waits does the rest
  {
    MutexLock lock(state_->mutex);
    state_->queue.push_back({std::move(operation.done), std::move(error)});
  }
  state_->changed.notify_one();
}

void Completions::finish() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(state_->mutex);
    state_->is_finished = true;
    threads.swap(state_->threads);
  }
  state_->changed.notify_all();
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();  // a callback ends the engine: its thread ends when it returns
    } else {
      thread.join();
    }
  }
}

void Completions::run(const std::shared_ptr<State>& state) {
  while (std::optional<Completion> completion = next(state)) {
    call(std::move(*completion));
    MutexLock lock(state->mutex);
    --state->num_running;
  }
}

// Blocks until there is something to run; nothing means that all is over.
std::optional<Completions::Completion> Completions::next(const std::shared_ptr<State>& state) {
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
  Completion completion = std::move(state->queue.front());
  state->queue.pop_front();
  ++state->num_running;
  state->latest_start = Clock::now();
  return completion;
}

// A callback must not throw; one that does has told its caller nothing, and the
// other callers still want to be told.
void Completions::call(Completion completion) {
  try {
    completion.done(std::move(completion.error));
  } catch (...) {
  }
}

}  // namespace smdist
