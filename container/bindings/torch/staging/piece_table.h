// SPDX-License-Identifier: Apache-2.0
// Operations that are being staged, and their pieces that are with the engine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pieces.h"
#include "staged_work.h"
#include "staging_device.h"

namespace smdist::torch_binding {

// An operation, from the call until all of its pieces have ended.
struct StagedOperation {
  StagingDevice& device;
  const Pieces pieces;
  const std::vector<Copy> copy_back;
  const CopyStreams::EventPtr ready;  // the caller's work before the call
  const c10::intrusive_ptr<StagedWork> work;
  const std::function<void()> ended;
  // Memory for an operation that is not divided; the sending thread takes it.
  at::Tensor memory = {};
  // Used by the receiving thread only:
  size_t num_ended = 0;
  std::exception_ptr error = nullptr;
  CopyStreams::EventPtr copied = nullptr;
};

// A piece whose copy to the host was queued.
struct PieceInFlight {
  std::shared_ptr<StagedOperation> staged;
  Piece piece;
  at::Tensor slot;
  CopyStreams::EventPtr on_host;  // null if the copy failed
  bool is_last = false;
};

// Pieces that are with the engine, and the numbers of those that it has ended. The engine's
// callbacks know a piece by its number, because they may hold no tensors: the destructor of a
// tensor may wait for the GIL.
//
// Thread safety: all methods may be called from any thread.
class PieceTable final {
 public:
  uint64_t add(PieceInFlight piece);
  // Record that a piece has ended. error: null if it succeeded.
  void end(uint64_t number, const std::exception_ptr& error);
  struct Next {
    std::optional<std::pair<PieceInFlight, std::exception_ptr>> ended;  // a piece and its error
    bool is_stopped = false;  // stop() was called, and all pieces have ended
  };
  // Wait for the next piece that has ended, or until the table is stopped, or for `at_most`.
  Next next_ended(std::optional<std::chrono::microseconds> at_most = std::nullopt);
  void stop();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, PieceInFlight> pieces_;  // guarded by mutex_, as are the next three
  std::deque<std::pair<uint64_t, std::exception_ptr>> ended_;
  uint64_t last_number_ = 0;
  bool is_stopped_ = false;
};

}  // namespace smdist::torch_binding
