// SPDX-License-Identifier: Apache-2.0
#include "smdist/engine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/checks.h"
#include "engine/engine_impl.h"
#include "memory/arena_layout.h"
#include "transport/tcp_transport.h"

namespace smdist {
namespace {

constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 10);

Options checked(Options options) {
  check(options);
  return options;
}

std::vector<int> hosts_of(const Options& options, const std::vector<int>& members) {
  std::vector<int> hosts;
  for (const int member : members) {
    hosts.push_back(options.hosts.empty() ? 0 : options.hosts[static_cast<size_t>(member)]);
  }
  return hosts;
}

std::shared_ptr<Group> make_group(const Options& options, uint32_t id,
                                  const std::vector<int>& members, int rank) {
  const std::vector<int> hosts = hosts_of(options, members);
  const bool is_on_one_host = std::set<int>(hosts.begin(), hosts.end()).size() == 1;
  return std::make_shared<Group>(id, members, rank, HostTopology(hosts), is_on_one_host,
                                 options.window);
}

OperationId id_for(uint32_t group, const Operation& operation) {
  switch (operation.kind) {
    case Collective::kSend:
      return {group, Role::kSend, operation.tag, -1, 0};
    case Collective::kReceive:
      return {group, Role::kReceive, operation.tag, -1, 0};
    default:
      return {group, Role::kCollective, 0, -1, 0};
  }
}

}  // namespace

Engine::Impl::Impl(Options options, std::unique_ptr<Transport> transport)
    : options_(checked(std::move(options))),
      transport_(transport ? std::move(transport) : std::make_unique<TcpTransport>(options_)),
      shared_memory_{ArenaLayout(options_).caller_memory(transport_->own_arena()),
                     transport_->arena_owner()},
      progress_(options_, *transport_, callbacks_),
      progress_lock_(*transport_),
      tuning_(options_.tuning) {}

void Engine::Impl::join(const std::vector<Endpoint>& peers) {
  if (peers.size() != static_cast<size_t>(options_.size)) {
    throw UsageError("join() got " + std::to_string(peers.size()) +
                     " endpoints, but the engine has " + std::to_string(options_.size) +
                     " ranks. Pass one endpoint for each rank");
  }
  MutexLock lock(mutex_);
  if (state_ != LifePhase::kNew)
    throw UsageError(
        "join() was called twice, or after shutdown(). Call it once, before shutdown()");
  transport_->start(peers, &progress_);
  callbacks_.start();
  progress_thread_ = std::thread([this] { run_progress_thread(); });
  state_ = LifePhase::kRunning;
  progress_lock_.open();
}

void Engine::Impl::add_group(uint32_t id, std::vector<int> members) {
  const std::string name = "group " + std::to_string(id);
  std::vector<int> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  const bool is_valid = !sorted.empty() && sorted.front() >= 0 && sorted.back() < options_.size &&
                        std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (!is_valid)
    throw UsageError("the members of " + name + " must be different ranks from 0 to " +
                     std::to_string(options_.size - 1));
  const auto own = std::find(members.begin(), members.end(), options_.rank);
  if (own == members.end()) {
    throw UsageError("rank " + std::to_string(options_.rank) + " is not a member of " + name +
                     ", so it cannot add that group");
  }
  const int rank = static_cast<int>(own - members.begin());
  MutexLock lock(mutex_);
  Membership& membership = groups_[id];
  membership.is_removed = false;
  if (!membership.group) membership.group = make_group(options_, id, members, rank);
  if (membership.group->members != members) {
    throw UsageError(name +
                     " exists already and has other members. Give each group a number of its own");
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
                       " pending operations and cannot be removed. Wait for them first");
    }
    found->second.is_removed = true;
    inbox_.removed_groups.push_back(id);
  }
  progress_lock_.notify();
}

std::shared_ptr<Group> Engine::Impl::group_of(uint32_t id) {
  MutexLock lock(mutex_);
  const auto found = groups_.find(id);
  if (found == groups_.end() || found->second.is_removed) {
    throw UsageError("group " + std::to_string(id) + " does not exist. Call add_group() first");
  }
  return found->second.group;
}

uint64_t Engine::Impl::submit(uint32_t group_id, Operation operation) {
  Submission submission;
  submission.group = group_of(group_id);
  const int rank = submission.group->rank;
  const int size = submission.group->size();
  check(operation, rank, size);
  submission.submitted = Clock::now();
  submission.deadline = submission.submitted + std::min(operation.timeout, kLongest);
  submission.late_at =
      operation.is_patient ? Clock::time_point::max() : submission.submitted + options_.late_after;
  submission.id = id_for(group_id, operation);
  submission.descriptor = descriptor_of(operation, rank, size);
  submission.operation = std::move(operation);
  MutexLock submitting(submitting_mutex_);
  number(submission);
  if (!submission.may_be_shared()) submission.make_plan();
  const uint64_t sequence = submission.id.sequence;
  put_in_inbox(std::move(submission));
  return sequence;
}

void Engine::Impl::put_in_inbox(Submission submission) {
  {
    MutexLock lock(mutex_);
    inbox_.submissions.push_back(std::move(submission));
  }
  progress_lock_.notify();
}

uint64_t Engine::Impl::num_submitted(uint32_t group) {
  group_of(group);  // throws if there is none
  MutexLock lock(mutex_);
  return groups_[group].num_collectives;
}

void Engine::Impl::on_announced(const OperationId& id, OnAnnounced found) {
  group_of(id.group);
  {
    MutexLock lock(mutex_);
    if (state_ != LifePhase::kRunning)
      throw UsageError("on_announced() was called before join() or after shutdown()");
    inbox_.watched.emplace_back(id, std::move(found));
  }
  progress_lock_.notify();
}

// Assigns the operation its number, and chooses its algorithm. Both are the same on all ranks,
// because all ranks submit the same operations in the same order. (A send or receive gets another
// number when its peer is known: see Matching.)
void Engine::Impl::number(Submission& submission) {
  MutexLock lock(mutex_);
  if (state_ == LifePhase::kNew)
    throw UsageError("submit() was called before join(). Call join() first");
  if (state_ == LifePhase::kEnded)
    throw UsageError("the engine was shut down, so it cannot start an operation");
  Membership& membership = groups_[submission.id.group];
  CallNumber* const call = submission.operation.call.get();
  const bool is_first = call == nullptr || call->num_started == 0;
  submission.id.sequence = is_first ? membership.next(submission.id.role) : call->sequence;
  if (call != nullptr) {
    call->sequence = submission.id.sequence;
    submission.id.part = call->num_started++;
  }
  ++submission.group->pending;
  const uint64_t turn = submission.id.sequence + submission.id.part;
  submission.choice = choose(submission.descriptor, tuning_, *submission.group, turn);
}

void Engine::Impl::tune(Tuning tuning, bool is_last) {
  check(tuning, options_.size);
  if (tuning.lanes > options_.max_lanes) {
    throw UsageError("the tuning has " + std::to_string(tuning.lanes) +
                     " lanes, but max_lanes of the engine's options is " +
                     std::to_string(options_.max_lanes));
  }
  {
    MutexLock lock(mutex_);
    inbox_.tuning = tuning;
    inbox_.is_last_tuning = is_last;
    tuning_ = std::move(tuning);
  }
  progress_lock_.notify();
}

void Engine::Impl::abort(const std::string& reason, const std::string& details) {
  if (details.size() > kMaxDetailsBytes) {
    throw UsageError("the details of an abort have " + std::to_string(details.size()) +
                     " bytes, but at most " + std::to_string(kMaxDetailsBytes) +
                     " bytes can be sent");
  }
  {
    MutexLock lock(mutex_);
    if (!inbox_.fault)
      inbox_.fault = Fault{FaultKind::kAborted, options_.rank, reason, {}, details};
  }
  progress_lock_.notify();
}

void Engine::Impl::shutdown() {
  MutexLock shutting_down(shutdown_mutex_);
  LifePhase before;
  {
    MutexLock submitting(submitting_mutex_);
    MutexLock lock(mutex_);
    before = std::exchange(state_, LifePhase::kEnded);
    inbox_.is_ended = true;
  }
  if (before != LifePhase::kRunning) return;
  progress_lock_.close();
  progress_lock_.notify();
  progress_thread_.join();
  callbacks_.finish();
}

Engine::Engine(Options options) : Engine(std::move(options), nullptr) {}
Engine::Engine(Options options, std::unique_ptr<Transport> transport)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(transport))) {}

// Waits until all callers have returned: shutdown() only ends the operations for which they wait.
Engine::~Engine() {
  shutdown();
  impl_->wait_for_callers();
}

int Engine::rank() const { return impl_->options().rank; }
int Engine::size() const { return impl_->options().size; }
Endpoint Engine::endpoint() const { return impl_->endpoint(); }
SharedMemory Engine::shared_memory() const { return impl_->shared_memory(); }
void Engine::join(std::vector<Endpoint> peers) { impl_->join(peers); }
void Engine::add_group(uint32_t id, std::vector<int> members) {
  impl_->add_group(id, std::move(members));
}
void Engine::remove_group(uint32_t id) { impl_->remove_group(id); }
uint64_t Engine::submit(uint32_t group, Operation operation) {
  return impl_->submit(group, std::move(operation));
}
uint64_t Engine::num_submitted(uint32_t group) const { return impl_->num_submitted(group); }
void Engine::on_announced(uint32_t group, uint64_t sequence, uint32_t part, OnAnnounced found) {
  impl_->on_announced({group, Role::kCollective, 0, -1, sequence, part}, std::move(found));
}
void Engine::check_operation(const Operation& operation, int rank, int size) {
  smdist::check(operation, rank, size);
}
bool Engine::wait(Completion& completion, Completion::Clock::time_point until) {
  return impl_->wait(completion, until);
}
uint64_t Engine::submit_and_wait(uint32_t group, Operation operation, Completion& completion) {
  return impl_->submit_and_wait(group, std::move(operation), completion);
}
void Engine::tune(Tuning tuning, bool is_last) { impl_->tune(std::move(tuning), is_last); }
void Engine::abort(const std::string& reason, const std::string& details) {
  impl_->abort(reason, details);
}
void Engine::shutdown() { impl_->shutdown(); }
std::exception_ptr Engine::failure() const { return impl_->failure(); }
std::exception_ptr Engine::last_error() const { return impl_->last_error(); }
std::string Engine::history(const std::string& reason) const { return impl_->history(reason); }
bool Engine::is_running() const { return impl_->is_running(); }
void Engine::close_in_child() noexcept { impl_->close_in_child(); }

}  // namespace smdist
