// SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "statuses.h"

namespace smdist::tensorflow_binding {
namespace {

// Never destroyed: ops may run while the process ends.
struct Adopted {
  std::mutex mutex;
  Current current;             // guarded by mutex
  std::atomic<pid_t> pid{-1};  // of who adopted it
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
  Current last;  // destroyed after the lock: the engine's end takes a while
  const std::lock_guard<std::mutex> lock(here.mutex);
  std::swap(last, here.current);
}

Current current() {
  Adopted& here = adopted();
  const pid_t pid = here.pid;
  if (pid == -1) {
    throw NoEngineError(
        "there is no engine: this process has not joined the other ranks, or has left them. "
        "Call smdist.dataparallel.tensorflow.init() first.");
  }
  // The lock may have been held at the fork: a child must not touch it.
  if (pid != getpid()) {
    throw NoEngineError(
        "this process was forked from a rank, which the engine stays with. "
        "Run collectives in the rank itself, or start the process by \"spawn\".");
  }
  const std::lock_guard<std::mutex> lock(here.mutex);
  const bool is_running = here.current.engine && here.current.engine->is_running();
  if (!is_running) {
    throw NoEngineError("the engine of this process was shut down. Run collectives before that.");
  }
  return here.current;
}

Activity& activity() {
  static auto* const of_process = new Activity;
  return *of_process;
}

}  // namespace smdist::tensorflow_binding
