// SPDX-License-Identifier: Apache-2.0
#include "smdist/engine.h"

#include <algorithm>
#include <cfenv>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "collectives/turns.h"
#include "engine/completions.h"
#include "engine/conductor.h"
#include "engine/request.h"
#include "smdist/transport.h"
#include "transport/tcp_transport.h"

namespace smdist {
namespace {

constexpr std::chrono::milliseconds kFarewell{300};  // how long a goodbye may take
constexpr std::chrono::milliseconds kAfterFault{100};
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 10);

Options checked(Options options) {
  check(options);
  return options;
}

Hosts hosts_of(const Options& options, const std::vector<int>& members) {
  if (options.hosts.empty()) return Hosts(static_cast<int>(members.size()));
  std::vector<int> hosts;
  for (const int member : members) hosts.push_back(options.hosts[static_cast<size_t>(member)]);
  return Hosts(hosts);
}

OperationId id_for(uint32_t group, const Operation& operation) {
  switch (operation.kind) {
    case Collective::kSend:
      return {group, Way::kSend, operation.tag, -1, 0};
    case Collective::kReceive:
      return {group, Way::kReceive, operation.tag, -1, 0};
    default:
      return {group, Way::kCollective, 0, -1, 0};
  }
}

}  // namespace

// What callers and the I/O thread share, and that thread itself.
//
// Thread safety: as Engine.
class Engine::Impl final {
 public:
  Impl(Options options, std::unique_ptr<Transport> transport)
      : options_(checked(std::move(options))),
        transport_(transport ? std::move(transport) : std::make_unique<TcpTransport>(options_)),
        conductor_(options_, *transport_, completions_),
        tuning_(options_.tuning) {}

  const Options& options() const { return options_; }
  Endpoint endpoint() const { return transport_->endpoint(); }
  void join(const std::vector<Endpoint>& peers) SMDIST_EXCLUDES(mutex_);
  void add_group(uint32_t id, std::vector<int> members) SMDIST_EXCLUDES(mutex_);
  void remove_group(uint32_t id) SMDIST_EXCLUDES(mutex_);
  uint64_t submit(uint32_t group, Operation operation) SMDIST_EXCLUDES(mutex_, submitting_mutex_);
  void tune(Tuning tuning) SMDIST_EXCLUDES(mutex_);
  void abort(FaultKind kind, const std::string& reason) SMDIST_EXCLUDES(mutex_);
  void shutdown() SMDIST_EXCLUDES(mutex_, submitting_mutex_, ending_mutex_);
  void close_in_child() noexcept { transport_->close_in_child(); }
  std::exception_ptr failure() const { return conductor_.failure(); }
  bool is_running() SMDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return stage_ == Stage::kRunning;
  }

 private:
  enum class Stage : uint8_t { kNew, kRunning, kEnded };

  // What other threads leave for the I/O thread.
  struct Inbox {
    std::vector<Submission> submissions;
    std::vector<uint32_t> forgotten_groups;
    std::optional<Tuning> tuning;
    std::optional<Fault> fault;
    bool is_ended = false;
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
  void run();
  bool run_once();
  void spread_fault();

  const Options options_;
  const std::unique_ptr<Transport> transport_;
  Completions completions_;
  Conductor conductor_;  // touched by the I/O thread only, once it runs

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

void Engine::Impl::join(const std::vector<Endpoint>& peers) {
  if (peers.size() != static_cast<size_t>(options_.size)) {
    throw UsageError("join() takes the endpoints of all " + std::to_string(options_.size) +
                     " ranks, not " + std::to_string(peers.size()));
  }
  MutexLock lock(mutex_);
  if (stage_ != Stage::kNew) throw UsageError("join() may be called once, before shutdown()");
  transport_->start(peers, &conductor_);
  completions_.start();
  io_thread_ = std::thread([this] { run(); });
  stage_ = Stage::kRunning;
}

void Engine::Impl::add_group(uint32_t id, std::vector<int> members) {
  const std::string name = "group " + std::to_string(id);
  std::vector<int> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  const bool is_valid = !sorted.empty() && sorted.front() >= 0 && sorted.back() < options_.size &&
                        std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (!is_valid) throw UsageError("the members of " + name + " are not different ranks");
  const auto own = std::find(members.begin(), members.end(), options_.rank);
  if (own == members.end()) {
    throw UsageError("rank " + std::to_string(options_.rank) + " is not a member of " + name);
  }
  const int rank = static_cast<int>(own - members.begin());
  MutexLock lock(mutex_);
  Member& member = groups_[id];
  member.is_removed = false;
  if (!member.group)
    member.group =
        std::make_shared<Group>(id, members, rank, hosts_of(options_, members), options_.window);
  if (member.group->members != members) {
    throw UsageError(name + " has other members already: two groups got the same number");
  }
}

void Engine::Impl::remove_group(uint32_t id) {
  {
    MutexLock lock(mutex_);
    const auto found = groups_.find(id);
    if (found == groups_.end()) return;
    const uint64_t pending = found->second.group->pending;
    if (pending > 0) {
      throw UsageError("group " + std::to_string(id) + " has " + std::to_string(pending) +
                       " operations on their way; wait for them, then remove it");
    }
    found->second.is_removed = true;
    inbox_.forgotten_groups.push_back(id);
  }
  transport_->wake();
}

std::shared_ptr<Group> Engine::Impl::group_of(uint32_t id) {
  MutexLock lock(mutex_);
  const auto found = groups_.find(id);
  if (found == groups_.end() || found->second.is_removed) {
    throw UsageError("there is no group " + std::to_string(id) + "; call add_group() first");
  }
  return found->second.group;
}

uint64_t Engine::Impl::submit(uint32_t group_id, Operation operation) {
  Submission submission;
  submission.group = group_of(group_id);
  const int rank = submission.group->rank;
  const int size = submission.group->size();
  check(operation, rank, size);
  submission.deadline = Clock::now() + std::min(operation.timeout, kLongest);
  submission.id = id_for(group_id, operation);
  submission.descriptor = descriptor_of(operation, rank, size);
  submission.operation = std::move(operation);
  MutexLock submitting(submitting_mutex_);
  const Choice choice = number(submission);
  submission.plan = plan_of(submission.operation, *submission.group, choice);
  const uint64_t sequence = submission.id.sequence;
  bool was_empty = false;
  {
    MutexLock lock(mutex_);
    was_empty = inbox_.submissions.empty();
    inbox_.submissions.push_back(std::move(submission));
  }
  if (was_empty) transport_->wake();
  return sequence;
}

// Gives the operation its number, and chooses how it is done: the same on all
// ranks, since all number the same operations.
Choice Engine::Impl::number(Submission& submission) {
  MutexLock lock(mutex_);
  if (stage_ == Stage::kNew) throw UsageError("call join() before submit()");
  if (stage_ == Stage::kEnded) throw UsageError("the engine was shut down");
  Member& member = groups_[submission.id.group];
  submission.id.sequence = member.next(submission.id.way);  // of a message: until its channel does
  ++submission.group->pending;
  return choose(submission.descriptor, tuning_, *submission.group, member.turns);
}

void Engine::Impl::tune(Tuning tuning) {
  check(tuning, options_.size);
  {
    MutexLock lock(mutex_);
    inbox_.tuning = tuning;
    tuning_ = std::move(tuning);
  }
  transport_->wake();
}

void Engine::Impl::abort(FaultKind kind, const std::string& reason) {
  {
    MutexLock lock(mutex_);
    if (!inbox_.fault) inbox_.fault = Fault{kind, options_.rank, reason};
  }
  transport_->wake();
}

void Engine::Impl::shutdown() {
  MutexLock ending(ending_mutex_);
  Stage before;
  {
    MutexLock submitting(submitting_mutex_);
    MutexLock lock(mutex_);
    before = std::exchange(stage_, Stage::kEnded);
    inbox_.is_ended = true;
  }
  if (before != Stage::kRunning) return;
  transport_->wake();
  io_thread_.join();
  completions_.finish();
}

Engine::Impl::Inbox Engine::Impl::take_inbox() {
  MutexLock lock(mutex_);
  const bool is_ended = inbox_.is_ended;
  Inbox taken = std::exchange(inbox_, {});
  inbox_.is_ended = is_ended;
  return taken;
}

void Engine::Impl::run() {
  std::fesetenv(FE_DFL_ENV);  // sums must not depend on the creator's rounding or denormal mode
  while (true) {
    try {
      if (!run_once()) break;
    } catch (const std::exception& error) {
      conductor_.abort(FaultKind::kSystem, error.what());
      std::this_thread::sleep_for(kAfterFault);  // should it happen again at once
    }
  }
  try {
    spread_fault();
    conductor_.leave();
    transport_->close(kFarewell);
  } catch (const std::exception& error) {
    if (options_.log) options_.log(std::string("the goodbye failed: ") + error.what());
  }
}

// A connection that is still being greeted would otherwise end without a word,
// and its rank would blame us instead of whoever we know to be at fault.
void Engine::Impl::spread_fault() {
  const Clock::time_point end = Clock::now() + kFarewell;
  while (conductor_.has_untold_peers() && Clock::now() < end) {
    transport_->poll(std::chrono::milliseconds(20));
  }
}

bool Engine::Impl::run_once() {
  Inbox inbox = take_inbox();
  if (inbox.tuning) transport_->tune(*inbox.tuning);
  for (Submission& submission : inbox.submissions) conductor_.post(std::move(submission));
  for (const uint32_t group : inbox.forgotten_groups) conductor_.forget(group);
  if (inbox.fault) conductor_.abort(inbox.fault->kind, inbox.fault->text);
  if (inbox.is_ended) return false;
  conductor_.check_deadlines();
  transport_->poll(conductor_.until_deadline());
  return true;
}

Engine::Engine(Options options) : Engine(std::move(options), nullptr) {}
Engine::Engine(Options options, std::unique_ptr<Transport> transport)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(transport))) {}
Engine::~Engine() { shutdown(); }

int Engine::rank() const { return impl_->options().rank; }
int Engine::size() const { return impl_->options().size; }
Endpoint Engine::endpoint() const { return impl_->endpoint(); }
void Engine::join(std::vector<Endpoint> peers) { impl_->join(peers); }
void Engine::add_group(uint32_t id, std::vector<int> members) {
  impl_->add_group(id, std::move(members));
}
void Engine::remove_group(uint32_t id) { impl_->remove_group(id); }
uint64_t Engine::submit(uint32_t group, Operation operation) {
  return impl_->submit(group, std::move(operation));
}
void Engine::tune(Tuning tuning) { impl_->tune(std::move(tuning)); }
void Engine::abort(const std::string& reason) { impl_->abort(FaultKind::kAborted, reason); }
void Engine::shutdown() { impl_->shutdown(); }
std::exception_ptr Engine::failure() const { return impl_->failure(); }
bool Engine::is_running() const { return impl_->is_running(); }
void Engine::close_in_child() noexcept { impl_->close_in_child(); }

}  // namespace smdist
