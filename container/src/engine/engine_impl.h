// SPDX-License-Identifier: Apache-2.0
// Implementation of the engine. Its progress loop is in progress_loop.cc, everything else in
// engine.cc.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/callback_executor.h"
#include "engine/group.h"
#include "engine/progress_engine.h"
#include "engine/progress_lock.h"
#include "engine/submission.h"
#include "smdist/engine.h"
#include "smdist/transport.h"

namespace smdist {

// State that callers and the progress thread share, and the progress thread itself. The methods are
// those of Engine.
//
// Thread safety: as Engine.
class Engine::Impl final {
 public:
  Impl(Options options, std::unique_ptr<Transport> transport);

  const Options& options() const { return options_; }
  Endpoint endpoint() const { return transport_->endpoint(); }
  const SharedMemory& shared_memory() const { return shared_memory_; }
  void join(const std::vector<Endpoint>& peers) SMDIST_EXCLUDES(mutex_);
  void add_group(uint32_t id, std::vector<int> members) SMDIST_EXCLUDES(mutex_);
  void remove_group(uint32_t id) SMDIST_EXCLUDES(mutex_);
  uint64_t submit(uint32_t group, Operation operation) SMDIST_EXCLUDES(mutex_, submitting_mutex_);
  uint64_t num_submitted(uint32_t group) SMDIST_EXCLUDES(mutex_);
  void on_announced(const OperationId& id, OnAnnounced found) SMDIST_EXCLUDES(mutex_);
  bool wait(Completion& completion, ProgressLock::Clock::time_point until)
      SMDIST_EXCLUDES(mutex_, progress_lock_);
  uint64_t submit_and_wait(uint32_t group, Operation operation, Completion& completion)
      SMDIST_EXCLUDES(mutex_, submitting_mutex_, progress_lock_);
  void tune(Tuning tuning, bool is_last) SMDIST_EXCLUDES(mutex_);
  void abort(const std::string& reason, const std::string& details) SMDIST_EXCLUDES(mutex_);
  void shutdown() SMDIST_EXCLUDES(mutex_, submitting_mutex_, shutdown_mutex_);
  void wait_for_callers() { progress_lock_.wait_for_callers(); }
  void close_in_child() noexcept { transport_->close_in_child(); }
  // Unchecked: ProgressEngine guards the error by a mutex of its own.
  std::exception_ptr failure() const SMDIST_UNCHECKED { return progress_.failure(); }
  std::exception_ptr last_error() const SMDIST_UNCHECKED { return progress_.last_error(); }
  // Unchecked: FlightRecorder has a mutex of its own.
  std::string history(const std::string& reason) SMDIST_UNCHECKED;
  bool is_running() SMDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return state_ == LifePhase::kRunning;
  }

 private:
  enum class LifePhase : uint8_t { kNew, kRunning, kEnded };

  // Work that callers leave for the next holder of the progress lock.
  struct Inbox {
    std::vector<Submission> submissions;
    std::vector<uint32_t> removed_groups;
    std::vector<std::pair<OperationId, OnAnnounced>> watched;  // see Engine::on_announced()
    std::optional<Tuning> tuning;
    bool is_last_tuning = false;
    std::optional<Fault> fault;
    bool is_ended = false;  // shutdown() was called; stays set for all later holders
  };
  // A group, and how many operations this rank has submitted to it.
  struct Membership {
    std::shared_ptr<Group> group;
    uint64_t num_collectives = 0;  // number of collectives submitted so far
    uint64_t num_messages = 0;     // number of sends and receives submitted so far
    bool is_removed = false;

    // Return the number of the next operation.
    uint64_t next(Role role) {
      return role == Role::kCollective ? num_collectives++ : num_messages++;
    }
  };

  std::shared_ptr<Group> group_of(uint32_t id) SMDIST_EXCLUDES(mutex_);
  void number(Submission& submission) SMDIST_EXCLUDES(mutex_);
  Inbox take_inbox() SMDIST_EXCLUDES(mutex_);
  void put_in_inbox(Submission submission) SMDIST_EXCLUDES(mutex_);
  void run_progress_thread() SMDIST_EXCLUDES(progress_lock_);
  void disconnect() SMDIST_REQUIRES(progress_lock_);
  bool make_progress() SMDIST_REQUIRES(progress_lock_);
  bool make_progress_or_throw() SMDIST_REQUIRES(progress_lock_);
  std::chrono::milliseconds max_wait() SMDIST_REQUIRES(progress_lock_);
  std::string groups_json(const std::set<uint32_t>& ids) SMDIST_EXCLUDES(mutex_);
  bool is_quiet() SMDIST_REQUIRES(progress_lock_);
  void progress_until(const Completion& completion, ProgressLock::Clock::time_point until)
      SMDIST_REQUIRES(progress_lock_);
  void deliver_fault() SMDIST_REQUIRES(progress_lock_);

  const Options options_;
  const std::unique_ptr<Transport> transport_;
  const SharedMemory shared_memory_;
  CallbackExecutor callbacks_;
  ProgressEngine progress_ SMDIST_GUARDED_BY(progress_lock_);
  SpinPolicy caller_spin_ SMDIST_GUARDED_BY(progress_lock_);  // for callers that hold the lock
  ProgressLock progress_lock_;                                // acquired before mutex_

  Mutex shutdown_mutex_;  // held while the threads end; acquired before mutex_
  std::thread progress_thread_;

  // Held while an operation is numbered and put into the inbox, so that operations enter the inbox
  // in the order of their numbers, and none after shutdown(). Acquired before mutex_.
  Mutex submitting_mutex_;

  Mutex mutex_;
  LifePhase state_ SMDIST_GUARDED_BY(mutex_) = LifePhase::kNew;
  Tuning tuning_ SMDIST_GUARDED_BY(mutex_);
  std::map<uint32_t, Membership> groups_ SMDIST_GUARDED_BY(mutex_);
  Inbox inbox_ SMDIST_GUARDED_BY(mutex_);
};

}  // namespace smdist
