// SPDX-License-Identifier: Apache-2.0
// Plans of all collectives.
//
// All algorithms are direct: data go from the sender to the receiver in one hop. Every rank sends
// to its peers in rotated order (rank r begins with r + 1), so that on average each rank receives
// from one peer at a time. Long messages are split into chunks, so that sums begin when the first
// chunks arrive. In this table, N is the number of ranks and S the length of the buffer in bytes.
//
//   collective      latency steps   bytes sent per rank
//   all_reduce      2               2 S (N-1)/N
//   ... one-shot    1               S (N-1)
//   reduce          2               up to 2 S (N-1)/N
//   ... if short    1               S
//   reduce_scatter  1               S (N-1)/N
//   all_gather      1               S (N-1)/N   (S: the output)
//   broadcast       1               root: S (N-1)
//   ... if long     2               root: S; others: S (N-2)/(N-1)
//   gather          1               S           (S: one part)
//   scatter         1               root: S (N-1)/N
//   all_to_all      1               S (N-1)/N
//   barrier         1               none
//
// If hosts have several ranks each, the collectives from all_reduce to broadcast take two more
// steps, and each host sends only as many bytes over the network as if it had one rank: with H
// hosts, an all_reduce sends 2 S (H-1)/H bytes per host. Partial sums of 16-bit floats are sent as
// 32-bit floats, which are twice as long, so that results are rounded only once.
//
// In the collectives with a root, ranks also wait until all others have posted the operation, which
// is not part of these plans: see agreement.h.
//
// Each function returns the plan of one rank. All functions require size >= 1, 0 <= rank < size and
// 0 <= root < size. All arguments except `rank` must be the same on all ranks. Scratch memory is
// bounded by the window, not by the length of the buffer: see Segmentation.
#pragma once

#include "collectives/hierarchical_reduce.h"
#include "collectives/host_topology.h"
#include "collectives/plan.h"
#include "collectives/sharding.h"

namespace smdist {

// Minimum length of a buffer, in bytes, for which a broadcast takes a second step, and for which
// several ranks share the work of a reduce.
constexpr size_t kLongBytes = 64 << 10;

// Layout of the N equal parts of an input or output: in one buffer, or in N buffers, one per rank.
enum class BufferLayout : uint8_t { kOneBuffer, kBufferPerRank };

// Plan an all_reduce in shards: every rank sends shard i of its input to rank i, which adds all N
// shards in rank order and sends the sum to all ranks. weights: relative size of each rank's shard.
Plan all_reduce(int rank, const HostTopology& hosts, size_t bytes, const Weights& weights,
                const Segmentation& segmentation);

// Plan an all_reduce of a short buffer in one step: every rank sends its input to all others and
// adds all inputs itself, those of each host first. The result has the same bits as that of
// all_reduce(). widening: see Segmentation.
Plan one_shot_all_reduce(int rank, const HostTopology& hosts, size_t bytes, size_t widening);

// Plan a reduce: as all_reduce(), but only the root receives the sums.
Plan reduce_to_root(int rank, const HostTopology& hosts, int root, size_t bytes,
                    const Segmentation& segmentation);

// Plan a reduce_scatter. part_bytes: length of the output, which is the part of one rank.
Plan reduce_scatter(int rank, const HostTopology& hosts, size_t part_bytes, BufferLayout inputs,
                    const Segmentation& segmentation);
// Plan an all_gather. part_bytes: length of the input, which is the part of one rank.
Plan all_gather(int rank, const HostTopology& hosts, size_t part_bytes, BufferLayout outputs);

// Plan a broadcast. A long buffer is split into shards: the root sends each shard to its owner,
// which sends it to the others. On one host, all ranks except the root are owners. On several
// hosts, the ranks of the other hosts are owners, and the ranks of the root's host receive the
// whole buffer from the root.
Plan broadcast(int rank, const HostTopology& hosts, int root, size_t bytes, size_t chunk_bytes);

// Plan a gather and a scatter. part_bytes: length of one rank's part.
Plan gather(int rank, int size, int root, size_t part_bytes, BufferLayout outputs);
Plan scatter(int rank, int size, int root, size_t part_bytes, BufferLayout inputs);

// Plan an all_to_all. to[p]: region that is sent to rank p. from[p]: region that receives the data
// from rank p.
Plan all_to_all(int rank, int size, const std::vector<Region>& to, const std::vector<Region>& from);

// Plan a barrier: every rank sends an empty message to every other rank.
Plan barrier(int rank, int size);

// Plan the sender's, and the receiver's, side of one message.
Plan send_to(int rank, int size, int receiver, size_t bytes);
Plan receive_from(int rank, int size, int sender, size_t bytes);

// Return the regions of the N equal parts of an input or output.
std::vector<Region> parts_of_ranks(BufferKind buffer, int size, size_t part_bytes,
                                   BufferLayout layout);

}  // namespace smdist
