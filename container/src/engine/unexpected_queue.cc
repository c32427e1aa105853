// SPDX-License-Identifier: Apache-2.0
#include "engine/unexpected_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr size_t kMaxFramesPerPeer = 1 << 16;  // a peer that is further ahead has an error

}  // namespace

void UnexpectedQueue::add(const OperationId& ours, int peer, UnexpectedRtr ready) {
  Usage& usage = usage_of(peer);
  if (usage.frames == kMaxFramesPerPeer) {
    throw PeerError("is more than " + std::to_string(kMaxFramesPerPeer) +
                    " calls ahead of this rank. All ranks must call the same operations");
  }
  const size_t bytes = ready.eager.bytes.size();
  if (usage.bytes + bytes > kMaxEagerBytesPerPeer) {
    throw PeerError("sent more than " + std::to_string(kMaxEagerBytesPerPeer) +
                    " bytes before this rank called the operations that receive them. Restart the "
                    "job, and report this bug of smdist");
  }
  const auto [entry, is_new] = operations_.try_emplace(ours);
  if (is_new) entry->second.arrival = ++num_arrivals_;
  if (!entry->second.ready.insert({peer, std::move(ready)}).second) {
    throw PeerError(
        "reported the start of the same operation twice. Restart the job, and report this bug of "
        "smdist");
  }
  ++usage.frames;
  usage.bytes += bytes;
}

UnexpectedQueue::ByRank UnexpectedQueue::take(const OperationId& ours) {
  const auto found = operations_.find(ours);
  if (found == operations_.end()) return {};
  ByRank ready = std::move(found->second.ready);
  operations_.erase(found);
  for (const auto& [rank, each] : ready) {
    --usage_of(rank).frames;
    usage_of(rank).bytes -= each.eager.bytes.size();
  }
  return ready;
}

const UnexpectedRtr* UnexpectedQueue::find(const OperationId& ours) const {
  const auto found = operations_.find(ours);
  return found == operations_.end() ? nullptr : &found->second.ready.begin()->second;
}

std::set<int> UnexpectedQueue::drop_call(const OperationId& ours) {
  std::set<int> senders;
  auto next = operations_.lower_bound(call_of(ours));
  while (next != operations_.end() && call_of(next->first) == call_of(ours)) {
    const OperationId id = next->first;
    ++next;
    for (const auto& [rank, each] : take(id)) senders.insert(rank);
  }
  return senders;
}

std::optional<int> UnexpectedQueue::first_sender(uint32_t group, uint32_t channel,
                                                 const std::vector<int>& members) const {
  std::optional<int> sender;
  uint64_t earliest = UINT64_MAX;
  for (const int member : members) {
    const auto first = operations_.lower_bound({group, Role::kReceive, channel, member, 0});
    const bool has_sent =
        first != operations_.end() &&
        first->first == OperationId{group, Role::kReceive, channel, member, first->first.sequence};
    if (has_sent && first->second.arrival < earliest) {
      earliest = first->second.arrival;
      sender = member;
    }
  }
  return sender;
}

void UnexpectedQueue::clear() {
  operations_.clear();
  std::fill(usage_.begin(), usage_.end(), Usage{});
}

}  // namespace smdist
