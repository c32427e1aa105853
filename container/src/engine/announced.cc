// SPDX-License-Identifier: Apache-2.0
#include "engine/announced.h"

#include <utility>

namespace smdist {

bool Announced::add(const OperationId& ours, int peer, Announcement theirs) {
  const auto [found, is_new] = operations_.try_emplace(ours);
  if (is_new) found->second.arrival = ++arrivals_;
  return found->second.announcements.insert({peer, std::move(theirs)}).second;
}

Announced::Announcements Announced::take(const OperationId& ours) {
  const auto found = operations_.find(ours);
  if (found == operations_.end()) return {};
  Announcements announcements = std::move(found->second.announcements);
  operations_.erase(found);
  return announcements;
}

std::optional<int> Announced::first_sender(uint32_t group, uint32_t channel,
                                           const std::vector<int>& members) const {
  std::optional<int> sender;
  uint64_t earliest = UINT64_MAX;
  for (const int member : members) {
    const auto first = operations_.lower_bound({group, Way::kReceive, channel, member, 0});
    const bool is_there =
        first != operations_.end() &&
        first->first == OperationId{group, Way::kReceive, channel, member, first->first.sequence};
    if (is_there && first->second.arrival < earliest) {
      earliest = first->second.arrival;
      sender = member;
    }
  }
  return sender;
}

}  // namespace smdist
