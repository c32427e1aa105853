// SPDX-License-Identifier: Apache-2.0
// The one engine that the ops of this process use; Python sets it.
#pragma once

#include <chrono>
#include <memory>

#include "smdist/activity.h"
#include "smdist/engine.h"

namespace smdist::tensorflow_binding {

struct EngineContext {
  std::shared_ptr<Engine> engine;
  std::chrono::milliseconds timeout{};  // timeout of each operation
};

// Makes the ops use this engine; its group 0 has all ranks.
void adopt(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout);

// Drops the engine. Operations in flight end as the engine ends them.
void release();

// Returns the engine. Throws NoEngineError if there is none, and in a forked child.
EngineContext current_engine();

// Returns the statistics of the operations of this process.
Activity& activity();

}  // namespace smdist::tensorflow_binding
