// SPDX-License-Identifier: Apache-2.0
#include "engine/disagreements.h"

#include <string>

#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr size_t kPostedPerGroup = 64;
constexpr size_t kMaxUnposted = 4096;

}  // namespace

void Disagreements::add(const OperationId& id, const Fault& fault, bool is_posted) {
  if (!is_posted && num_unposted_ == kMaxUnposted) {
    throw PeerError("reported the end of more than " + std::to_string(kMaxUnposted) +
                    " calls that this rank has not reached. All ranks must call the same "
                    "operations");
  }
  GroupState& group = groups_[id.group];
  if (!group.calls.try_emplace(id.sequence, EndedCall{fault, false}).second) return;
  ++num_unposted_;
  if (is_posted) on_posted(id);
}

const Fault* Disagreements::find(const OperationId& id) const {
  if (groups_.empty() || id.role != Role::kCollective) return nullptr;
  const auto group = groups_.find(id.group);
  if (group == groups_.end()) return nullptr;
  const auto call = group->second.calls.find(id.sequence);
  return call == group->second.calls.end() ? nullptr : &call->second.fault;
}

bool Disagreements::includes(const OperationId& id) const {
  if (find(id) != nullptr) return true;
  if (id.role != Role::kCollective) return false;
  const auto group = groups_.find(id.group);
  return group != groups_.end() && id.sequence < group->second.forgotten_end;
}

void Disagreements::on_posted(const OperationId& id) {
  GroupState& group = groups_[id.group];
  EndedCall& call = group.calls.at(id.sequence);
  if (call.is_posted) return;
  call.is_posted = true;
  --num_unposted_;
  if (++group.num_posted > kPostedPerGroup) forget_oldest(group);
}

// Ranks post calls in the order of their numbers, so the first stored call is a posted one.
void Disagreements::forget_oldest(GroupState& group) {
  const auto oldest = group.calls.begin();
  group.forgotten_end = oldest->first + 1;
  group.calls.erase(oldest);
  --group.num_posted;
}

void Disagreements::clear() {
  groups_.clear();
  num_unposted_ = 0;
}

}  // namespace smdist
