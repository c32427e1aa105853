// SPDX-License-Identifier: Apache-2.0
// Copies of results to devices.
#pragma once

#include <list>
#include <memory>
#include <thread>

#include "engine/callback_executor.h"
#include "piece_table.h"
#include "smdist/engine.h"

namespace smdist::torch_binding {

// Copies the results of pieces to their devices, in the order in which the engine ends them, and
// completes the operations. A thread of its own does this, and looks after the copies until they
// are complete: if one fails, it aborts the engine at once, so that all ranks raise an error.
// Further threads call the callbacks of Futures, which may wait for other operations, and destroy
// the tensors of operations, for which they may wait for the GIL.
//
// Thread safety: the thread that constructs an object calls stop() once, before the destructor.
class ResultCopies final {
 public:
  ResultCopies(std::shared_ptr<Engine> engine, std::shared_ptr<PieceTable> pieces,
               std::shared_ptr<AwaitedWorks> awaited);
  ResultCopies(const ResultCopies&) = delete;
  ResultCopies& operator=(const ResultCopies&) = delete;

  // End the threads when all pieces have ended. Requires: PieceTable::stop() was called.
  void stop();

 private:
  // Copies that were queued, with the signal behind them. Keeps no tensors: their destructors may
  // wait for the GIL, and the allocator knows which streams use them.
  struct Queued {
    std::weak_ptr<StagedOperation> staged;
    StagingDevice& device;
    CopyStreams::EventPtr copied;
    std::optional<StreamSignal> signal;
  };

  void run();
  void copy(PieceInFlight piece, const std::exception_ptr& error);
  void end_operation(PieceInFlight last_piece);
  bool release_streams(const std::shared_ptr<StagedOperation>& staged);
  void look_after_copies();
  bool is_complete(const Queued& copies);
  void finish_copies();

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<PieceTable> pieces_;
  const std::shared_ptr<AwaitedWorks> awaited_;
  // Used by the thread only:
  std::list<Queued> queued_;
  std::list<std::shared_ptr<StagedOperation>> failed_;  // streams may wait for them
  CallbackExecutor callbacks_;
  std::thread thread_;
};

}  // namespace smdist::torch_binding
