// SPDX-License-Identifier: Apache-2.0
// All staging queues of this process, by their engines.
#pragma once

#include <memory>

#include "staging_queue.h"

namespace smdist::torch_binding {

// Return the queue of an engine, which is made with these options if it has none yet.
std::shared_ptr<StagingQueue> staging_of(const std::shared_ptr<Engine>& engine,
                                         const StagingOptions& options);

// Return the queue of an engine, or null if it has none.
std::shared_ptr<StagingQueue> find_staging(const Engine& engine);

// Block until no stream waits for an operation of any queue that has not ended. Call before engines
// are shut down.
void finish_all_staging();

// Stop all queues. Call when the engines were shut down, before Python is finalized: afterwards
// their threads could not destroy tensors. Throws the error of an operation that has failed after
// its wait(), if no call has raised it.
void stop_all_staging();

}  // namespace smdist::torch_binding
