// SPDX-License-Identifier: Apache-2.0
// What this process's ops work with: one engine, told from Python.
#pragma once

#include <chrono>
#include <memory>

#include "smdist/activity.h"
#include "smdist/engine.h"

namespace smdist::tensorflow_binding {

struct Current {
  std::shared_ptr<Engine> engine;
  std::chrono::milliseconds timeout{};  // of each operation
};

// The ops use this engine from now on; its group 0 has all ranks.
void adopt(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout);

// No engine any more. Operations on their way end as the engine ends them.
void release();

// Throws NoEngineError where there is none, also in a forked child.
Current current();

// What all ops of this process have under way.
Activity& activity();

}  // namespace smdist::tensorflow_binding
