// SPDX-License-Identifier: Apache-2.0
// Reduction in two levels: within each host, then between hosts.
#pragma once

#include <map>
#include <vector>

#include "collectives/host_topology.h"
#include "collectives/plan_builder.h"

namespace smdist {

// Lengths of messages and sums, and the number of them in flight.
struct Segmentation {
  // Length of the chunks that are summed and sent: long enough to hide the cost of a message,
  // short enough for the level-2 cache.
  size_t chunk_bytes = 0;
  // Number of chunks of one rank that an owner keeps until those of the other ranks arrive.
  uint32_t window = 0;
  // Factor by which a host's partial sum is longer than its inputs.
  size_t widening = 1;
};

// Messages for one chunk of an owner's shard.
enum class ReduceMessage : uint32_t {
  kContribution = 0,  // from a rank to the leader of its host
  kPartialSum = 1,    // from a host leader to the owner
  kTotal = 2,         // the result, from the owner to the others
};
constexpr uint32_t kReduceMessages = 3;

// Plans the steps of one rank that add the contributions to each owner's shard.
//
// On the owner's host, every rank sends its contribution to the owner. On any other host, all
// contributions go to the host leader, which adds them in rank order and sends the partial sum to
// the owner. The owner adds the partial sums in the order of hosts. So the order of additions
// depends only on the placement of ranks on hosts.
//
// Contributions are received into a window of slots. A later chunk reuses a slot after a sum has
// read it.
//
// Thread safety: none.
class HierarchicalReduce final {
 public:
  HierarchicalReduce(PlanBuilder& builder, int rank, const HostTopology& hosts,
                     const Segmentation& segmentation)
      : builder_(builder), rank_(rank), hosts_(hosts), segmentation_(segmentation) {}

  // Adds this rank's steps for a chunk of the owner's shard. Call in the order of chunks. share:
  // this rank's contribution. sum: target of the total, on the owner. after: steps that must end
  // before the total is written. Returns the last step added: on the owner, the one that writes
  // the total.
  uint32_t add(int owner, uint32_t chunk, const Region& share, const Region& sum,
               std::vector<uint32_t> after = {});

  uint32_t tag(int owner, uint32_t chunk, ReduceMessage message) const;

 private:
  // Receive slots that this rank has for one owner, and the steps that used them.
  struct ReduceSlots {
    std::map<int, std::vector<Region>> by_rank;  // slots by the rank that fills them
    std::vector<uint32_t> reads;                 // by chunk: the step that reads the contributions
    std::vector<uint32_t> totals;                // by chunk: the last step
  };

  Region slot(ReduceSlots& slots, int whose, uint32_t chunk, size_t bytes);
  uint32_t receive(ReduceSlots& slots, int from, uint32_t tag, uint32_t chunk, size_t bytes,
                   const std::vector<uint32_t>& readers);
  void append_earlier(const std::vector<uint32_t>& steps, uint32_t chunk,
                      std::vector<uint32_t>& after) const;
  std::vector<Region> gather_shares(ReduceSlots& slots, int owner, uint32_t chunk,
                                    const Region& share, std::vector<uint32_t>& arrivals);
  uint32_t add_partial(ReduceSlots& slots, int owner, uint32_t chunk, const Region& share,
                       Region& partial);
  uint32_t add_total(ReduceSlots& slots, uint32_t chunk, const Region& share, const Region& sum,
                     std::vector<uint32_t> after);

  PlanBuilder& builder_;
  const int rank_;
  const HostTopology& hosts_;
  const Segmentation& segmentation_;
  std::map<int, ReduceSlots> reduce_slots_;  // by owner
};

}  // namespace smdist
