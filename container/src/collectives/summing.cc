// SPDX-License-Identifier: Apache-2.0
#include "collectives/summing.h"

#include <utility>

namespace smdist {

uint32_t Summing::tag(int owner, uint32_t piece, Leg leg) const {
  const auto owners = static_cast<uint32_t>(hosts_.size());
  return (piece * owners + static_cast<uint32_t>(owner)) * kLegs + static_cast<uint32_t>(leg);
}

uint32_t Summing::add(int owner, uint32_t piece, const Region& share, const Region& sum,
                      std::vector<uint32_t> after) {
  const int deputy = hosts_.deputy(hosts_.host_of(rank_), owner);
  const bool is_granted = piece >= cut_.window;
  if (rank_ != deputy) {
    return builder_.send(deputy, tag(owner, piece, Leg::kShare), share, {}, is_granted);
  }
  Desk& desk = desks_[owner];
  if (rank_ == owner) return add_total(desk, piece, share, sum, std::move(after));
  Region partial;
  const uint32_t added = add_partial(desk, owner, piece, share, partial);
  desk.totals.push_back(
      builder_.send(owner, tag(owner, piece, Leg::kPartial), partial, {added}, is_granted));
  return desk.totals.back();
}

// The slot that a piece shares with those a window before and behind it.
Region Summing::slot(Desk& desk, int whose, uint32_t piece, size_t bytes) {
  std::vector<Region>& slots = desk.slots[whose];
  const uint32_t index = piece % cut_.window;
  if (index == slots.size()) slots.push_back(builder_.scratch(bytes));
  return part_of(slots[index], 0, bytes);  // the last piece may be shorter
}

// After the step that used the slot a window ago.
void Summing::append_earlier(const std::vector<uint32_t>& steps, uint32_t piece,
                             std::vector<uint32_t>& after) const {
  if (piece >= cut_.window) after.push_back(steps[piece - cut_.window]);
}

uint32_t Summing::receive(Desk& desk, int from, uint32_t tag, uint32_t piece, size_t bytes,
                          const std::vector<uint32_t>& readers) {
  std::vector<uint32_t> after;
  append_earlier(readers, piece, after);
  return builder_.receive(from, tag, slot(desk, from, piece, bytes), std::move(after));
}

// The shares of this host in rank order: ours lies where it is, the others come.
std::vector<Region> Summing::gather_shares(Desk& desk, int owner, uint32_t piece,
                                           const Region& share, std::vector<uint32_t>& arrivals) {
  std::vector<Region> shares;
  for (const int neighbour : hosts_.ranks_on(hosts_.host_of(rank_))) {
    if (neighbour == rank_) {
      shares.push_back(share);
      continue;
    }
    arrivals.push_back(
        receive(desk, neighbour, tag(owner, piece, Leg::kShare), piece, share.bytes, desk.reads));
    shares.push_back(slot(desk, neighbour, piece, share.bytes));
  }
  return shares;
}

// The sum of this host.
uint32_t Summing::add_partial(Desk& desk, int owner, uint32_t piece, const Region& share,
                              Region& partial) {
  std::vector<uint32_t> after;
  std::vector<Region> shares = gather_shares(desk, owner, piece, share, after);
  partial = slot(desk, rank_, piece, share.bytes * cut_.widening);
  append_earlier(desk.totals, piece, after);
  desk.reads.push_back(
      builder_.reduce(Stage::kPartial, std::move(shares), partial, std::move(after)));
  return desk.reads.back();
}

uint32_t Summing::add_total(Desk& desk, uint32_t piece, const Region& share, const Region& sum,
                            std::vector<uint32_t> after) {
  if (hosts_.count() == 1) {
    std::vector<Region> shares = gather_shares(desk, rank_, piece, share, after);
    desk.reads.push_back(builder_.reduce(Stage::kWhole, std::move(shares), sum, std::move(after)));
    return desk.reads.back();
  }
  Region own;
  after.push_back(add_partial(desk, rank_, piece, share, own));
  std::vector<Region> partials;
  for (int host = 0; host < hosts_.count(); ++host) {
    const int deputy = hosts_.deputy(host, rank_);
    if (deputy != rank_) {
      after.push_back(
          receive(desk, deputy, tag(rank_, piece, Leg::kPartial), piece, own.bytes, desk.totals));
    }
    partials.push_back(slot(desk, deputy, piece, own.bytes));
  }
  desk.totals.push_back(builder_.reduce(Stage::kFinal, std::move(partials), sum, std::move(after)));
  return desk.totals.back();
}

}  // namespace smdist
