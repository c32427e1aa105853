// SPDX-License-Identifier: Apache-2.0
#include "engine/operation_history.h"

#include <iterator>

namespace smdist {
namespace {

constexpr size_t kEntriesPerGroup = 64;

}  // namespace

// Entries stay sorted, although operations end in any order.
void OperationHistory::add(const OperationId& id, const Descriptor& descriptor) {
  std::deque<EndedCollective>& entries = groups_[id.group];
  auto after = entries.end();
  while (after != entries.begin() && id < std::prev(after)->id) --after;
  entries.insert(after, {id, descriptor});
  if (entries.size() > kEntriesPerGroup) entries.pop_front();
}

void OperationHistory::forget(uint32_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  std::deque<EndedCollective>& entries = found->second;
  entries.erase(entries.begin(), entries.end() - 1);
}

const Descriptor* OperationHistory::find(const OperationId& id) const {
  const auto group = groups_.find(id.group);
  if (group == groups_.end()) return nullptr;
  for (const EndedCollective& entry : group->second) {
    if (entry.id == id) return &entry.descriptor;
  }
  return nullptr;
}

bool OperationHistory::is_past(const OperationId& id) const {
  const auto group = groups_.find(id.group);
  return group != groups_.end() && !group->second.empty() && !(group->second.back().id < id);
}

}  // namespace smdist
