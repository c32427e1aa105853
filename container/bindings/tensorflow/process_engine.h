// SPDX-License-Identifier: Apache-2.0
// The engine that all ops of this process use; Python sets it.
#pragma once

#include <chrono>
#include <memory>

#include "smdist/activity.h"
#include "smdist/engine.h"

namespace smdist::tensorflow_binding {

// The engine of this process, and the timeout of its operations.
struct EngineContext {
  std::shared_ptr<Engine> engine;
  std::chrono::milliseconds timeout{};  // timeout of each operation
};

// Set the engine that ops use; its group 0 must contain all ranks. timeout: timeout of each
// operation.
void adopt(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout);

// Drop this process's reference to the engine. If it was the last one, the engine shuts down.
void release();

// Return the engine. Throws NoEngineError if there is none, or if this process is a forked child.
EngineContext current_engine();

// Return the statistics of the operations of this process.
Activity& activity();

}  // namespace smdist::tensorflow_binding
