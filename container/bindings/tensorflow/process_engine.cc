// SPDX-License-Identifier: Apache-2.0
#include "process_engine.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "status.h"

namespace smdist::tensorflow_binding {
namespace {

// The current engine. Never destroyed, because ops may run while the process ends.
struct Adopted {
  std::mutex mutex;
  EngineContext current;       // guarded by mutex
  std::atomic<pid_t> pid{-1};  // process that called adopt()
};

Adopted& adopted() {
  static auto* const of_process = new Adopted;
  return *of_process;
}

}  // namespace

void adopt(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout) {
  Adopted& here = adopted();
  const std::lock_guard<std::mutex> lock(here.mutex);
  here.current = {std::move(engine), timeout};
  here.pid = getpid();
}

void release() {
  Adopted& here = adopted();
  if (here.pid.exchange(-1) != getpid()) return;
  EngineContext last;  // destroyed after the lock, because the engine's shutdown takes time
  const std::lock_guard<std::mutex> lock(here.mutex);
  std::swap(last, here.current);
}

EngineContext current_engine() {
  Adopted& here = adopted();
  const pid_t pid = here.pid;
  if (pid == -1) {
    throw NoEngineError(
        "there is no engine: this process has not connected to the other ranks, or has "
        "disconnected. Call smdist.dataparallel.tensorflow.init() first.");
  }
  // A forked child must not lock: another thread may have held the lock at the fork.
  if (pid != getpid()) {
    throw NoEngineError(
        "this process was forked from a rank, and the engine belongs to the parent. "
        "Run collectives in the rank itself, or start the process by \"spawn\".");
  }
  const std::lock_guard<std::mutex> lock(here.mutex);
  const bool is_running = here.current.engine && here.current.engine->is_running();
  if (!is_running) {
    throw NoEngineError(
        "the engine of this process was shut down. Run collectives before the shutdown.");
  }
  return here.current;
}

Activity& activity() {
  static auto* const of_process = new Activity;
  return *of_process;
}

}  // namespace smdist::tensorflow_binding
