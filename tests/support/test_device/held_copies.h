// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "copy_faults.h"
#include "scheduler.h"

namespace test_device {

// Holds copies of a kind, with all that is queued behind them on their streams, until release().
//
// Thread safety: every function may be called from any thread.
class HeldCopies final {
 public:
  // Holds the copies of the kind that are queued from now on. Throws c10::Error if they are held
  // already.
  void hold(CopyKind kind);
  void release(CopyKind kind);

  // Lets a stream wait, if a copy of the kind that is queued there now is held.
  void block(const c10::Stream& stream, CopyKind kind);

 private:
  std::mutex mutex_;
  std::map<CopyKind, std::shared_ptr<Mark>> marks_;  // of the kinds that are held
};

HeldCopies& held_copies();

}  // namespace test_device
