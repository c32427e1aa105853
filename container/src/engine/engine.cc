// SPDX-License-Identifier: Apache-2.0
#include "smdist/engine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/impl.h"
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
  return std::make_shared<Group>(id, members, rank, Hosts(hosts), is_on_one_host, options.window);
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

Engine::Impl::Impl(Options options, std::unique_ptr<Transport> transport)
    : options_(checked(std::move(options))),
      transport_(transport ? std::move(transport) : std::make_unique<TcpTransport>(options_)),
      conductor_(options_, *transport_, completions_),
      lead_(*transport_),
      tuning_(options_.tuning) {}

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
  lead_.open();
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
  if (!member.group) member.group = make_group(options_, id, members, rank);
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
  lead_.wake();
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
  submission.choice = number(submission);
  if (!submission.may_be_shared()) submission.make_plan();
  const uint64_t sequence = submission.id.sequence;
  leave_in_inbox(std::move(submission));
  return sequence;
}

void Engine::Impl::leave_in_inbox(Submission submission) {
  {
    MutexLock lock(mutex_);
    inbox_.submissions.push_back(std::move(submission));
  }
  lead_.wake();
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
  lead_.wake();
}

void Engine::Impl::abort(FaultKind kind, const std::string& reason) {
  {
    MutexLock lock(mutex_);
    if (!inbox_.fault) inbox_.fault = Fault{kind, options_.rank, reason};
  }
  lead_.wake();
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
  lead_.close();
  lead_.wake();
  io_thread_.join();
  completions_.finish();
}

Engine::Engine(Options options) : Engine(std::move(options), nullptr) {}
Engine::Engine(Options options, std::unique_ptr<Transport> transport)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(transport))) {}

// Who waits has been told by shutdown(), and is on his way out.
Engine::~Engine() {
  shutdown();
  impl_->await_visitors();
}

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
bool Engine::wait(Ending& ending, Ending::Clock::time_point until) {
  return impl_->wait(ending, until);
}
uint64_t Engine::run(uint32_t group, Operation operation, Ending& ending) {
  return impl_->run(group, std::move(operation), ending);
}
void Engine::tune(Tuning tuning) { impl_->tune(std::move(tuning)); }
void Engine::abort(const std::string& reason) { impl_->abort(FaultKind::kAborted, reason); }
void Engine::shutdown() { impl_->shutdown(); }
std::exception_ptr Engine::failure() const { return impl_->failure(); }
bool Engine::is_running() const { return impl_->is_running(); }
void Engine::close_in_child() noexcept { impl_->close_in_child(); }

}  // namespace smdist
