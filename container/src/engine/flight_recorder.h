// SPDX-License-Identifier: Apache-2.0
// The last 1,000 operations of this rank.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>

#include "base/mutex.h"
#include "engine/submission.h"

namespace smdist {

// Stores what each of the last 1,000 operations was, when it was submitted, started and ended, and
// whether it failed. The memory is fixed. A write takes the time of an uncontended lock, so that a
// reader needs no other lock of the engine: it can read while an operation waits.
//
// Thread safety: all methods may be called from any thread.
class FlightRecorder final {
 public:
  static constexpr size_t kOperations = 1000;

  // Add an operation, and return its number here, from 1.
  uint64_t add(const Submission& submission) SMDIST_EXCLUDES(mutex_);
  // Set the number of a send or receive, which is known when its peer is.
  void set_id(uint64_t number, const OperationId& id) SMDIST_EXCLUDES(mutex_);
  // Record that all ranks on which the operation depends have posted it.
  void start(uint64_t number) SMDIST_EXCLUDES(mutex_);
  void end(uint64_t number, bool has_failed) SMDIST_EXCLUDES(mutex_);

  // Return the operations as a JSON list, the oldest first; docs/debugging.md describes it.
  std::string json() const SMDIST_EXCLUDES(mutex_);
  // Return the numbers of the groups of these operations.
  std::set<uint32_t> groups() const SMDIST_EXCLUDES(mutex_);

 private:
  struct Entry {
    uint64_t number = 0;  // 0: the entry is not used yet
    OperationId id;
    Collective kind = Collective::kBarrier;
    Dtype dtype = Dtype::kUint8;
    ReduceOp op = ReduceOp::kSum;
    int root = 0;
    int peer = 0;  // rank in the group; sends and receives only
    uint64_t bytes = 0;
    Clock::time_point submitted;
    Clock::time_point started;  // time_point(): not yet
    Clock::time_point ended;
    bool has_failed = false;
  };

  static std::string json_of(const Entry& entry, double unix_offset);
  Entry* find(uint64_t number) SMDIST_REQUIRES(mutex_);

  mutable Mutex mutex_;
  uint64_t last_number_ SMDIST_GUARDED_BY(mutex_) = 0;
  std::array<Entry, kOperations> entries_ SMDIST_GUARDED_BY(mutex_);
};

}  // namespace smdist
