// SPDX-License-Identifier: Apache-2.0
#include "engine/matching.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/algorithm_choice.h"

namespace smdist {
namespace {

bool has_same_tag(const OperationId& a, const OperationId& b) {
  return a.group == b.group && a.channel == b.channel;
}

bool is_from_any(const Submission& submission) { return submission.operation.peer == kAnyRank; }

int engine_rank_of_peer(const Submission& submission) {
  return submission.group->members[static_cast<size_t>(submission.operation.peer)];
}

bool may_come_from(const Submission& submission, int rank) {
  const std::vector<int>& members = submission.group->members;
  if (!is_from_any(submission)) return engine_rank_of_peer(submission) == rank;
  return std::find(members.begin(), members.end(), rank) != members.end();
}

}  // namespace

std::vector<Submission> Matching::post(Submission submission, const UnexpectedQueue& unexpected) {
  const OperationId& id = submission.id;
  const bool waits = std::any_of(waiting_.begin(), waiting_.end(), [&](const Submission& receive) {
    return id.role == Role::kReceive && is_from_any(receive) && has_same_tag(receive.id, id);
  });
  std::optional<int> peer;
  if (!waits && !is_from_any(submission)) peer = engine_rank_of_peer(submission);
  if (!waits && is_from_any(submission))
    peer = unexpected.first_sender(id.group, id.channel, submission.group->members);
  std::vector<Submission> ready;
  if (peer) {
    number(submission, *peer);
    ready.push_back(std::move(submission));
  } else {
    waiting_.push_back(std::move(submission));
  }
  return ready;
}

std::vector<Submission> Matching::announce(const OperationId& ours) {
  std::vector<Submission> ready;
  bool is_taken = false;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const bool is_candidate = has_same_tag(at->id, ours);
    const bool takes = is_candidate && !is_taken && may_come_from(*at, ours.peer);
    const bool is_free = is_candidate && is_taken && !is_from_any(*at) && !is_behind_another(at);
    if (takes || is_free) {
      number(*at, takes ? ours.peer : engine_rank_of_peer(*at));
      ready.push_back(std::move(*at));
      at = waiting_.erase(at);
    } else {
      ++at;
    }
    is_taken = is_taken || takes;
  }
  return ready;
}

bool Matching::was_posted(const OperationId& ours) const {
  OperationId channel = ours;
  channel.sequence = 0;
  const auto found = next_.find(channel);
  return found != next_.end() && ours.sequence < found->second;
}

// Assigns the operation the next number of its channel with `peer`, an engine rank, and makes its
// plan.
void Matching::number(Submission& submission, int peer) {
  submission.id.peer = peer;
  submission.id.sequence = 0;
  submission.id.sequence = next_[submission.id]++;
  Operation& operation = submission.operation;
  const std::vector<int>& members = submission.group->members;
  const auto found = std::find(members.begin(), members.end(), peer);
  operation.peer = static_cast<int>(found - members.begin());
  if (operation.source != nullptr) *operation.source = operation.peer;
  submission.plan = plan_of(operation, *submission.group, {});
}

bool Matching::is_behind_another(const std::list<Submission>::iterator& receive) {
  return std::any_of(waiting_.begin(), receive, [&](const Submission& earlier) {
    return is_from_any(earlier) && has_same_tag(earlier.id, receive->id);
  });
}

}  // namespace smdist
