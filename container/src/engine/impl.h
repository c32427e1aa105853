// SPDX-License-Identifier: Apache-2.0
// What an engine consists of. How it runs is in running.cc, all else in engine.cc.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "collectives/turns.h"
#include "engine/completions.h"
#include "engine/conductor.h"
#include "engine/lead.h"
#include "engine/request.h"
#include "smdist/engine.h"
#include "smdist/transport.h"

namespace smdist {

// What callers and the engine's own thread share, and that thread itself.
//
// Thread safety: as Engine.
class Engine::Impl final {
 public:
  Impl(Options options, std::unique_ptr<Transport> transport);

  const Options& options() const { return options_; }
  Endpoint endpoint() const { return transport_->endpoint(); }
  void join(const std::vector<Endpoint>& peers) SMDIST_EXCLUDES(mutex_);
  void add_group(uint32_t id, std::vector<int> members) SMDIST_EXCLUDES(mutex_);
  void remove_group(uint32_t id) SMDIST_EXCLUDES(mutex_);
  uint64_t submit(uint32_t group, Operation operation) SMDIST_EXCLUDES(mutex_, submitting_mutex_);
  bool wait(Ending& ending, Lead::Clock::time_point until) SMDIST_EXCLUDES(mutex_, lead_);
  uint64_t run(uint32_t group, Operation operation, Ending& ending)
      SMDIST_EXCLUDES(mutex_, submitting_mutex_, lead_);
  void tune(Tuning tuning) SMDIST_EXCLUDES(mutex_);
  void abort(FaultKind kind, const std::string& reason) SMDIST_EXCLUDES(mutex_);
  void shutdown() SMDIST_EXCLUDES(mutex_, submitting_mutex_, ending_mutex_);
  void await_visitors() { lead_.await_visitors(); }
  void close_in_child() noexcept { transport_->close_in_child(); }
  // The conductor has a lock of its own for it.
  std::exception_ptr failure() const SMDIST_UNCHECKED { return conductor_.failure(); }
  bool is_running() SMDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return stage_ == Stage::kRunning;
  }

 private:
  enum class Stage : uint8_t { kNew, kRunning, kEnded };

  // What is left for whoever leads.
  struct Inbox {
    std::vector<Submission> submissions;
    std::vector<uint32_t> forgotten_groups;
    std::optional<Tuning> tuning;
    std::optional<Fault> fault;
    bool is_ended = false;  // stays: whoever leads next has to hear of it, too
  };
  struct Member {
    std::shared_ptr<Group> group;
    uint64_t collectives = 0;  // submitted so far
    uint64_t messages = 0;
    Turns turns;
    bool is_removed = false;

    uint64_t next(Way way) { return way == Way::kCollective ? collectives++ : messages++; }
  };

  std::shared_ptr<Group> group_of(uint32_t id) SMDIST_EXCLUDES(mutex_);
  Choice number(Submission& submission) SMDIST_EXCLUDES(mutex_);
  Inbox take_inbox() SMDIST_EXCLUDES(mutex_);
  void leave_in_inbox(Submission submission) SMDIST_EXCLUDES(mutex_);
  void run() SMDIST_EXCLUDES(lead_);
  void end() SMDIST_REQUIRES(lead_);
  bool step() SMDIST_REQUIRES(lead_);
  bool step_or_throw() SMDIST_REQUIRES(lead_);
  std::chrono::milliseconds patience() SMDIST_REQUIRES(lead_);
  bool is_quiet() SMDIST_REQUIRES(lead_);
  void lead_to(const Ending& ending, Lead::Clock::time_point until) SMDIST_REQUIRES(lead_);
  void spread_fault() SMDIST_REQUIRES(lead_);

  const Options options_;
  const std::unique_ptr<Transport> transport_;
  Completions completions_;
  Conductor conductor_ SMDIST_GUARDED_BY(lead_);
  Looking looking_ SMDIST_GUARDED_BY(lead_);  // of callers who lead
  Lead lead_;                                 // taken before mutex_

  Mutex ending_mutex_;  // whoever ends the threads holds it; taken before mutex_
  std::thread io_thread_;

  // Held from an operation's number until it lies in the inbox: they come in order, and none
  // after the end. Taken before mutex_.
  Mutex submitting_mutex_;

  Mutex mutex_;
  Stage stage_ SMDIST_GUARDED_BY(mutex_) = Stage::kNew;
  Tuning tuning_ SMDIST_GUARDED_BY(mutex_);
  std::map<uint32_t, Member> groups_ SMDIST_GUARDED_BY(mutex_);
  Inbox inbox_ SMDIST_GUARDED_BY(mutex_);
};

}  // namespace smdist
