// SPDX-License-Identifier: Apache-2.0
// Reduction in two levels: within each host, then between hosts.
#pragma once

#include <map>
#include <vector>

#include "collectives/host_topology.h"
#include "collectives/plan_builder.h"

namespace smdist {

// Length of the messages of a reduction, and the number of them that a rank can store.
struct Segmentation {
  // Length of the chunks that are summed and sent: long enough that the cost of a message does not
  // count, and short enough for the level-2 cache.
  size_t chunk_bytes = 0;
  // Number of chunks of each other rank that an owner can store until they are summed.
  uint32_t window = 0;
  // Length of a partial sum divided by the length of its inputs: 2 for 16-bit floats, else 1.
  size_t widening = 1;
};

// Kind of a message for one chunk of an owner's shard.
enum class ReduceMessage : uint32_t {
  kContribution = 0,  // from a rank to the leader of its host
  kPartialSum = 1,    // from a host leader to the owner
  kTotal = 2,         // the result, from the owner to the others
};
constexpr uint32_t kReduceMessages = 3;

// Plans the steps of one rank that add the contributions of all ranks to the shards of all owners.
//
// On the owner's host, every rank sends its contribution to the owner. On any other host, all
// contributions go to the host leader, which adds them in rank order and sends the partial sum to
// the owner. The owner adds the partial sums in the order of hosts. So the order of additions
// depends only on the placement of ranks on hosts.
//
// Contributions are received into slots of scratch memory, a fixed number (`window`) per sender. A
// later chunk reuses a slot after the sum of an earlier chunk has read it.
//
// Thread safety: none.
class HierarchicalReduce final {
 public:
  HierarchicalReduce(PlanBuilder& builder, int rank, const HostTopology& hosts,
                     const Segmentation& segmentation)
      : builder_(builder), rank_(rank), hosts_(hosts), segmentation_(segmentation) {}

  // Add this rank's steps for one chunk of the owner's shard. Call in the order of chunks. share:
  // this rank's contribution. sum: on the owner, the region of the result. after: steps that must
  // complete before the result is written. Returns the index of the last added step; on the owner,
  // that is the step that writes the result.
  uint32_t add(int owner, uint32_t chunk, const Region& share, const Region& sum,
               std::vector<uint32_t> after = {});

  // Return the tag of a message for one chunk of the owner's shard.
  uint32_t tag(int owner, uint32_t chunk, ReduceMessage message) const;

 private:
  // Receive slots that this rank has for one owner, and the steps that used them.
  struct ReduceSlots {
    std::map<int, std::vector<Region>> by_rank;  // slots by the rank whose data they store
    std::vector<uint32_t> reads;                 // steps that read the contributions, by chunk
    std::vector<uint32_t> totals;                // last steps, by chunk
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
