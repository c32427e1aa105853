// SPDX-License-Identifier: Apache-2.0
// Plans of all collectives.
//
// N ranks, S bytes, direct algorithms: data travel from rank to rank in one hop. Every rank
// serves its peers in rotated order (rank r begins with r + 1), so that on average each rank
// receives from one peer at a time. Long messages are cut into chunks and sent chunk by chunk to
// all peers, so that sums begin when the first chunks arrive.
//
//   collective      latency steps   bytes sent per rank
//   all_reduce      2               2 S (N-1)/N
//   ... at once     1               S (N-1)
//   reduce          2               up to 2 S (N-1)/N; short buffers: 1, S
//   reduce_scatter  1               S (N-1)/N
//   all_gather      1               S (N-1)/N   (S: the output)
//   broadcast       1               root: S (N-1)
//   ... if long     2               root: S; others: S (N-2)/(N-1)
//   gather          1               S           (S: one part)
//   scatter         1               root: S (N-1)/N
//   all_to_all      1               S (N-1)/N
//   barrier         1               none
//
// If hosts have several ranks each, the first five take two more steps, and a host sends as many
// bytes over the network as one rank per host would: with H hosts, an all_reduce sends 2 S
// (H-1)/H per host. Partial sums of 16-bit floats are sent as 32-bit floats, for a single
// rounding, and are twice as long.
//
// All functions require size >= 1, 0 <= rank < size and 0 <= root < size. All arguments but
// `rank` must be the same on all ranks. Scratch memory is bounded by the window, not by the
// length of the buffer: see Segmentation.
#pragma once

#include "collectives/hierarchical_reduce.h"
#include "collectives/host_topology.h"
#include "collectives/plan.h"
#include "collectives/sharding.h"

namespace smdist {

// Least length for which a broadcast takes a second step, and for which several ranks share the
// work of a reduce.
constexpr size_t kLongBytes = 64 << 10;

// Layout of N equal parts: in one buffer, or in N buffers.
enum class BufferLayout : uint8_t { kOneBuffer, kBufferPerRank };

// Shard i of every input goes to rank i, which adds all N of them in rank order into its output
// and sends the sum to all ranks.
Plan all_reduce(int rank, const HostTopology& hosts, size_t bytes, const Weights& weights,
                const Segmentation& segmentation);

// The same result, bit for bit, for short buffers: every rank sends its input to all others and
// adds all inputs itself, those of each host first.
Plan one_shot_all_reduce(int rank, const HostTopology& hosts, size_t bytes, size_t widening);

// As all_reduce, but only the root gets the sums.
Plan reduce_to_root(int rank, const HostTopology& hosts, int root, size_t bytes,
                    const Segmentation& segmentation);

Plan reduce_scatter(int rank, const HostTopology& hosts, size_t part_bytes, BufferLayout inputs,
                    const Segmentation& segmentation);
Plan all_gather(int rank, const HostTopology& hosts, size_t part_bytes, BufferLayout outputs);

// A long buffer is cut into shards: the root sends each shard to its owner, which sends it to the
// others. Owners are all ranks but the root or, if there are several hosts, all ranks of the
// other hosts; ranks of the root's host then receive the whole buffer from the root.
Plan broadcast(int rank, const HostTopology& hosts, int root, size_t bytes, size_t chunk_bytes);

Plan gather(int rank, int size, int root, size_t part_bytes, BufferLayout outputs);
Plan scatter(int rank, int size, int root, size_t part_bytes, BufferLayout inputs);

// to[p]: region that is sent to rank p. from[p]: region that receives the data from rank p.
Plan all_to_all(int rank, int size, const std::vector<Region>& to, const std::vector<Region>& from);

// Every rank signals every other rank.
Plan barrier(int rank, int size);

Plan send_to(int rank, int size, int receiver, size_t bytes);
Plan receive_from(int rank, int size, int sender, size_t bytes);

// Returns the regions of N parts.
std::vector<Region> parts_of_ranks(BufferKind buffer, int size, size_t part_bytes,
                                   BufferLayout layout);

}  // namespace smdist
