// SPDX-License-Identifier: Apache-2.0
// The engine that all ops of this process use; Python sets it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/name_order.h"
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

// This rank's number in a group of the engine, from 0, and the number of ranks in it.
struct GroupPlace {
  int rank;
  int size;
};

// Add a group to the current engine, for ops with the attribute `group`. members: ranks of the job
// in the order of their ranks in the group; this rank must be one of them. Throws NoEngineError,
// UsageError.
void add_group(uint32_t group, std::vector<int> members);

// Return this rank's place in a group: of all ranks for 0, or of a group that was added by
// add_group(). Throws UsageError if there is no such group.
GroupPlace place_in(uint32_t group, const EngineContext& current);

// Group for operations that carry a name, and the order in which its ranks start them. It has the
// ranks of another group, but numbers of its own, so neither waits for the other.
struct NamedGroup {
  uint32_t group;
  std::shared_ptr<NameOrder> order;
};

// Return the group for named operations of the ranks of `group`. Throws as place_in() does.
NamedGroup named_group(uint32_t group, const EngineContext& current);

// Let operations with names start without this rank until all ranks have joined; return the number
// of the group in which they run. Throws NoEngineError.
uint32_t join_by_name();

// Return the statistics of the operations of this process.
Activity& activity();

}  // namespace smdist::tensorflow_binding
