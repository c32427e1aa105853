// SPDX-License-Identifier: Apache-2.0
// How the contributions to one owner's shard meet and are added.
#pragma once

#include <map>
#include <vector>

#include "collectives/hosts.h"
#include "collectives/plan_builder.h"

namespace smdist {

// How long messages and sums are.
struct Cut {
  // Sums are done and results sent in pieces of this length: long enough to hide
  // the price of a message, short enough to stay in the second cache.
  size_t piece_bytes = 0;
  // How many pieces of one rank may lie at an owner, waiting for those of others.
  uint32_t window = 0;
  // How much longer a host's partial sum is than what it is the sum of.
  size_t widening = 1;
};

// The messages of a piece of an owner's shard.
enum class Leg : uint32_t {
  kShare = 0,    // a rank's contribution, to the deputy of its host
  kPartial = 1,  // a host's, to the owner
  kSum = 2,      // the total, back
};
constexpr uint32_t kLegs = 3;

// Adds the contributions to each owner's shard, as one rank sees it.
//
// On the owner's host, every rank sends its share to the owner. On any other host
// they go to the host's deputy, who adds them in rank order and sends the partial
// sum; the owner adds the hosts' partial sums in the order of hosts. So the order
// of additions depends on the layout of ranks on hosts and on nothing else.
//
// Shares lie in a window of slots, which later pieces use again when a sum has
// read them.
//
// Thread safety: none.
class Summing final {
 public:
  Summing(PlanBuilder& builder, int rank, const Hosts& hosts, const Cut& cut)
      : builder_(builder), rank_(rank), hosts_(hosts), cut_(cut) {}

  // Adds what this rank does for a piece of the owner's shard, pieces in order.
  // share: our contribution. sum: where the total goes on the owner. Returns the
  // step that makes the total there, which comes `after` others.
  uint32_t add(int owner, uint32_t piece, const Region& share, const Region& sum,
               std::vector<uint32_t> after = {});

  uint32_t tag(int owner, uint32_t piece, Leg leg) const;

 private:
  // What this rank keeps for one owner.
  struct Desk {
    std::map<int, std::vector<Region>> slots;  // by who fills them; the window's
    std::vector<uint32_t> reads;               // by piece: the step that has read the shares
    std::vector<uint32_t> totals;              // by piece: the last step for it
  };

  Region slot(Desk& desk, int whose, uint32_t piece, size_t bytes);
  uint32_t receive(Desk& desk, int from, uint32_t tag, uint32_t piece, size_t bytes,
                   const std::vector<uint32_t>& readers);
  void append_earlier(const std::vector<uint32_t>& steps, uint32_t piece,
                      std::vector<uint32_t>& after) const;
  std::vector<Region> gather_shares(Desk& desk, int owner, uint32_t piece, const Region& share,
                                    std::vector<uint32_t>& arrivals);
  uint32_t add_partial(Desk& desk, int owner, uint32_t piece, const Region& share, Region& partial);
  uint32_t add_total(Desk& desk, uint32_t piece, const Region& share, const Region& sum,
                     std::vector<uint32_t> after);

  PlanBuilder& builder_;
  const int rank_;
  const Hosts& hosts_;
  const Cut& cut_;
  std::map<int, Desk> desks_;  // by owner
};

}  // namespace smdist
