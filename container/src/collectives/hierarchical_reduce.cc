// SPDX-License-Identifier: Apache-2.0
#include "collectives/hierarchical_reduce.h"

#include <utility>

namespace smdist {

uint32_t HierarchicalReduce::tag(int owner, uint32_t chunk, ReduceMessage message) const {
  const auto owners = static_cast<uint32_t>(hosts_.size());
  return (chunk * owners + static_cast<uint32_t>(owner)) * kReduceMessages +
         static_cast<uint32_t>(message);
}

uint32_t HierarchicalReduce::add(int owner, uint32_t chunk, const Region& share, const Region& sum,
                                 std::vector<uint32_t> after) {
  const int leader = hosts_.host_leader(hosts_.host_of(rank_), owner);
  const bool awaits_credit = chunk >= segmentation_.window;
  if (rank_ != leader) {
    return builder_.send(leader, tag(owner, chunk, ReduceMessage::kContribution), share, {},
                         awaits_credit);
  }
  ReduceSlots& slots = reduce_slots_[owner];
  if (rank_ == owner) return add_total(slots, chunk, share, sum, std::move(after));
  Region partial;
  const uint32_t added = add_partial(slots, owner, chunk, share, partial);
  slots.totals.push_back(builder_.send(owner, tag(owner, chunk, ReduceMessage::kPartialSum),
                                       partial, {added}, awaits_credit));
  return slots.totals.back();
}

// Returns the slot of a chunk. Chunk n and chunk n + window use the same slot.
Region HierarchicalReduce::slot(ReduceSlots& slots, int whose, uint32_t chunk, size_t bytes) {
  std::vector<Region>& window = slots.by_rank[whose];
  const uint32_t index = chunk % segmentation_.window;
  if (index == window.size()) window.push_back(builder_.scratch(bytes));
  return part_of(window[index], 0, bytes);  // the last chunk may be shorter
}

// Appends, to the dependencies `after` of a step, the step that used the same slot one window
// before.
void HierarchicalReduce::append_earlier(const std::vector<uint32_t>& steps, uint32_t chunk,
                                        std::vector<uint32_t>& after) const {
  if (chunk >= segmentation_.window) after.push_back(steps[chunk - segmentation_.window]);
}

uint32_t HierarchicalReduce::receive(ReduceSlots& slots, int from, uint32_t tag, uint32_t chunk,
                                     size_t bytes, const std::vector<uint32_t>& readers) {
  std::vector<uint32_t> after;
  append_earlier(readers, chunk, after);
  return builder_.receive(from, tag, slot(slots, from, chunk, bytes), std::move(after));
}

// Returns the contributions of this host's ranks, in rank order: this rank's own where it is, the
// others in slots. Adds the receives that fill the slots, and appends them to `arrivals`.
std::vector<Region> HierarchicalReduce::gather_shares(ReduceSlots& slots, int owner, uint32_t chunk,
                                                      const Region& share,
                                                      std::vector<uint32_t>& arrivals) {
  std::vector<Region> shares;
  for (const int neighbour : hosts_.ranks_on(hosts_.host_of(rank_))) {
    if (neighbour == rank_) {
      shares.push_back(share);
      continue;
    }
    arrivals.push_back(receive(slots, neighbour, tag(owner, chunk, ReduceMessage::kContribution),
                               chunk, share.bytes, slots.reads));
    shares.push_back(slot(slots, neighbour, chunk, share.bytes));
  }
  return shares;
}

// Adds the step that sums the contributions of this host into `partial`, and returns its index.
uint32_t HierarchicalReduce::add_partial(ReduceSlots& slots, int owner, uint32_t chunk,
                                         const Region& share, Region& partial) {
  std::vector<uint32_t> after;
  std::vector<Region> shares = gather_shares(slots, owner, chunk, share, after);
  partial = slot(slots, rank_, chunk, share.bytes * segmentation_.widening);
  append_earlier(slots.totals, chunk, after);
  slots.reads.push_back(
      builder_.reduce(ReduceStage::kPartial, std::move(shares), partial, std::move(after)));
  return slots.reads.back();
}

uint32_t HierarchicalReduce::add_total(ReduceSlots& slots, uint32_t chunk, const Region& share,
                                       const Region& sum, std::vector<uint32_t> after) {
  if (hosts_.count() == 1) {
    std::vector<Region> shares = gather_shares(slots, rank_, chunk, share, after);
    slots.reads.push_back(
        builder_.reduce(ReduceStage::kWhole, std::move(shares), sum, std::move(after)));
    return slots.reads.back();
  }
  Region own;
  after.push_back(add_partial(slots, rank_, chunk, share, own));
  std::vector<Region> partials;
  for (int host = 0; host < hosts_.count(); ++host) {
    const int leader = hosts_.host_leader(host, rank_);
    if (leader != rank_) {
      after.push_back(receive(slots, leader, tag(rank_, chunk, ReduceMessage::kPartialSum), chunk,
                              own.bytes, slots.totals));
    }
    partials.push_back(slot(slots, leader, chunk, own.bytes));
  }
  slots.totals.push_back(
      builder_.reduce(ReduceStage::kFinal, std::move(partials), sum, std::move(after)));
  return slots.totals.back();
}

}  // namespace smdist
