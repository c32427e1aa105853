// SPDX-License-Identifier: Apache-2.0
// Operations, from their call to their end. The frames that move them are in
// sending.cc and receiving.cc, faults in faults.cc.
#include "engine/conductor.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "engine/request.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr size_t kIdleScratchBytes = 256 << 20;
constexpr size_t kHistory = 64;  // operations per group
constexpr std::chrono::milliseconds kPatience{500};

}  // namespace

Conductor::Conductor(const Options& options, Transport& transport, Completions& completions)
    : options_(options),
      transport_(transport),
      completions_(completions),
      names_(options.names),
      peers_(static_cast<size_t>(options.size)),
      pool_(kIdleScratchBytes),
      exchanges_(ArenaLayout(options), transport.own_arena()),
      is_expected_(peers_.size()) {
  for (size_t rank = names_.size(); rank < peers_.size(); ++rank) {
    names_.push_back("rank " + std::to_string(rank));
  }
  const Span blocks = exchanges_.blocks_of(transport.own_arena());
  if (blocks.bytes > 0) blocks_.emplace(blocks, options.block_bytes, options.blocks_per_peer);
}

void Conductor::post(Submission submission) {
  if (submission.id.way == Way::kCollective || broken_) return begin(std::move(submission));
  if (submission.operation.peer == kAnyRank) connect_all(*submission.group);
  begin_all(matching_.post(std::move(submission), announced_));
  check_waiting();
}

// Any of them may be the one to send.
void Conductor::connect_all(const Group& group) {
  for (const int rank : group.members) {
    if (rank != options_.rank) transport_.connect(rank);
  }
}

void Conductor::begin_all(std::vector<Submission> submissions) {
  for (Submission& submission : submissions) begin(std::move(submission));
}

void Conductor::begin(Submission submission) {
  SharedSum* const sum = begin_sum(submission);
  if (submission.may_be_shared() && sum == nullptr) submission.make_plan();
  Buffer scratch = broken_ ? Buffer{} : scratch_for(submission);
  if (broken_) {
    --submission.group->pending;
    completions_.push(submission.operation, broken_);
    return;
  }
  submission.serial = ++last_serial_;
  const OperationId id = submission.id;
  deadlines_.insert({submission.deadline, id});
  Pending& pending =
      pending_.try_emplace(id, std::move(submission), std::move(scratch), pool_).first->second;
  if (sum != nullptr) {
    pending.share(*sum);
    shared_.push_back(id);
  }
  const Pending::Moves moves = pending.begin();
  for (const int member : pending.partners()) announce(pending, member);
  run(pending, moves);
  meet_early(id);
  if (const Pending* still = find(id)) check_partners(*still);
}

Buffer Conductor::scratch_for(const Submission& submission) {
  const size_t bytes = submission.plan.scratch_bytes;
  try {
    return pool_.take(bytes);
  } catch (const std::bad_alloc&) {
    fail({FaultKind::kSystem, options_.rank,
          title_of(submission) + ": " + name_of_rank(options_.rank) + " has not the " +
              std::to_string(bytes) + " bytes of memory that it needs"},
         true);
    return {};
  }
}

// Those who announced the operation before we did.
void Conductor::meet_early(const OperationId& id) {
  const Announced::Announcements announcements = announced_.take(id);
  for (const auto& [rank, announcement] : announcements) {
    --peer(rank).num_early;
    peer(rank).early_bytes -= announcement.rider.bytes.size();
  }
  for (const auto& [rank, announcement] : announcements) {
    try {
      if (Pending* pending = find(id)) {
        meet(*pending, rank, announcement.descriptor, announcement.meeting);
        unpark(id, rank, announcement.rider);
      } else if (!broken_) {
        meet_past(rank, id, announcement.descriptor);
      }
    } catch (const PeerError& error) {
      fail({FaultKind::kPeer, rank, name_of_rank(rank) + " " + error.what()}, true);
    }
  }
}

void Conductor::unpark(const OperationId& id, int rank, const Rider& rider) {
  Pending* pending = find(id);
  if (pending == nullptr || rider.bytes.empty()) return;
  const int member = pending->member_of(rank);
  const size_t bytes = rider.bytes.size();
  std::memcpy(pending->place(member, rider.tag, 0, bytes).data, rider.bytes.data(), bytes);
  run(*pending, pending->arrived(member, rider.tag, bytes));
}

void Conductor::check_deadlines() {
  check_absent();
  check_waiting();
  if (!is_any_late()) return;
  advance();  // who was stopped itself may find that all is there
  if (is_busy_ || !is_any_late()) return;
  Pending& late = pending_.at(deadlines_.begin()->second);
  if (!extend(late)) fail_late(late);
}

bool Conductor::is_any_late() const {
  return !deadlines_.empty() && deadlines_.begin()->first <= Clock::now();
}

// Who has posted and still keeps us waiting waits for somebody itself, whom it
// can name and we cannot: its verdict comes first, if it comes soon.
bool Conductor::extend(Pending& late) {
  Submission& submission = late.submission();
  if (submission.is_extended || !late.is_stuck_elsewhere()) return false;
  deadlines_.erase(deadlines_.begin());
  submission.is_extended = true;
  submission.deadline = Clock::now() + kPatience;
  deadlines_.insert({submission.deadline, submission.id});
  return true;
}

std::chrono::milliseconds Conductor::until_deadline() const {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongest{60'000};
  Clock::time_point next = Clock::now() + kLongest;
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (!excuses_.empty()) next = std::min(next, *excuses_.begin());
  for (const Submission& receive : matching_.waiting()) next = std::min(next, receive.deadline);
  const auto left = next - Clock::now();
  const auto rounded = std::chrono::duration_cast<milliseconds>(left) + milliseconds(1);
  return std::clamp(rounded, milliseconds(0), kLongest);
}

bool Conductor::is_quiet() const {
  return pending_.empty() && matching_.waiting().empty() && excuses_.empty();
}

// Queues the sends that may leave, and ends the operation if that was all.
void Conductor::run(Pending& pending, const Pending::Moves& moves) {
  const Submission& submission = pending.submission();
  const OperationId id = submission.id;
  std::set<int> ranks;
  for (const uint32_t index : moves.sends) {
    const Step& step = pending.step(index);
    const Span message = pending.message_of(index);
    const int rank = submission.group->members[static_cast<size_t>(step.peer)];
    peer(rank).outbox.push({id, index, step.tag, static_cast<uint8_t*>(message.data), message.bytes,
                            next_lane(rank, message.bytes)});
    ranks.insert(rank);
  }
  for (const uint32_t index : moves.grants) send_grant(pending, index);
  for (const Pending::Lease& lease : moves.releases) {
    const int rank = submission.group->members[static_cast<size_t>(lease.member)];
    --peer(rank).num_leases;
    release(rank, lease.block);
  }
  if (pending.is_done()) finish(id);
  for (const int rank : ranks) pump(rank);
}

// A peer has posted the operation, too.
void Conductor::meet(Pending& pending, int rank, const Descriptor& theirs,
                     const std::optional<Meeting>& meeting) {
  const Submission& submission = pending.submission();
  const int member = pending.member_of(rank);
  if (pending.is_ready(member)) throw PeerError("announced the same operation twice");
  const Descriptor ours = submission.descriptor_to(member);
  if (!agree(ours, theirs)) {
    return fail_for_mismatch(submission.id, ours, rank, theirs);
  }
  peer(rank).rider_bytes -= pending.rider_bytes(member);  // it is parked no longer
  const bool is_sum = pending.sum() != nullptr;
  run(pending, pending.member_ready(member));
  if (is_sum) meet_sum(pending, rank, meeting);
}

void Conductor::finish(const OperationId& id) {
  const auto found = pending_.find(id);
  Submission& submission = found->second.submission();
  deadlines_.erase({submission.deadline, id});
  if (id.way == Way::kCollective) remember(submission);
  if (submission.operation.kind == Collective::kBarrier) hasten_all(*submission.group);
  --submission.group->pending;
  completions_.push(submission.operation, nullptr);
  pending_.erase(found);
}

// A process may end once a barrier is over: that it was there must have left by then.
void Conductor::hasten_all(const Group& group) {
  for (const int rank : group.members) {
    if (rank != options_.rank) transport_.hasten(rank);
  }
}

// Kept in order, although operations end in any.
void Conductor::remember(const Submission& submission) {
  const uint64_t sequence = submission.id.sequence;
  std::deque<Past>& past = history_[submission.id.group];
  const auto after = std::find_if(past.begin(), past.end(),
                                  [&](const Past& other) { return other.sequence > sequence; });
  past.insert(after, {sequence, submission.descriptor});
  if (past.size() > kHistory) past.pop_front();
}

Pending* Conductor::find(const OperationId& id) {
  const auto found = pending_.find(id);
  return found == pending_.end() ? nullptr : &found->second;
}

}  // namespace smdist
