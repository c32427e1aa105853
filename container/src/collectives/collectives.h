// SPDX-License-Identifier: Apache-2.0
// The plans of all collectives.
//
// N ranks, S bytes, direct algorithms: what has to go from one rank to another
// goes there in one message. Peers are served in rotated order (rank r begins
// with r + 1), so that at any time every rank hears of one other on average.
// Long messages are cut in pieces, served piece by piece over all peers, so that
// sums begin when the first pieces are there.
//
//   collective      latency steps   bytes sent per rank
//   all_reduce      2               2 S (N-1)/N
//   ... at once     1               S (N-1)
//   reduce          2               up to 2 S (N-1)/N; short buffers: 1, S
//   reduce_scatter  1               S (N-1)/N
//   all_gather      1               S (N-1)/N   (S: the output)
//   broadcast       1               root: S (N-1)
//   ... if long     2               root: S; others: S (N-2)/(N-1)
//   gather          1               S           (S: one chunk)
//   scatter         1               root: S (N-1)/N
//   all_to_all      1               S (N-1)/N
//   barrier         1               none
//
// Where hosts have several ranks each, the first five take two more steps, and
// what leaves a host over the wire is what one rank per host would send: with H
// hosts, an all_reduce sends 2 S (H-1)/H per host. Partial sums of 16-bit numbers
// travel as 32-bit ones, so that there is one rounding, and are twice as long.
//
// All functions require size >= 1, 0 <= rank < size and 0 <= root < size. The
// arguments but `rank` must be the same on all ranks. Scratch memory is bounded by
// the window, not by the buffer: see Cut.
#pragma once

#include "collectives/hosts.h"
#include "collectives/plan.h"
#include "collectives/shards.h"
#include "collectives/summing.h"

namespace smdist {

// From this length on a broadcast is worth its second latency step, and a reduce
// is worth being shared.
constexpr size_t kLongBytes = 64 << 10;

// Where N equal chunks lie: in one buffer, or in N buffers.
enum class Layout : uint8_t { kOneBuffer, kBufferPerRank };

// Shard i of every input goes to rank i, which sums all N of them in rank order
// into its output and sends the sum to all.
Plan all_reduce(int rank, const Hosts& hosts, size_t bytes, const Weights& weights, const Cut& cut);

// The same bits, for short buffers: every rank sends its input to all others and
// sums all of them by itself, those of each host first.
Plan all_reduce_at_once(int rank, const Hosts& hosts, size_t bytes, size_t widening);

// As all_reduce, but the sums go to the root alone.
Plan reduce_to_root(int rank, const Hosts& hosts, int root, size_t bytes, const Cut& cut);

Plan reduce_scatter(int rank, const Hosts& hosts, size_t chunk_bytes, Layout inputs,
                    const Cut& cut);
Plan all_gather(int rank, const Hosts& hosts, size_t chunk_bytes, Layout outputs);

// Long: the root cuts the buffer in shards and sends each to its owner, who sends
// it to the others. Owners are all other ranks or, where there are other hosts,
// all ranks of those; the root's neighbours then have it all from the root.
Plan broadcast(int rank, const Hosts& hosts, int root, size_t bytes, size_t piece_bytes);

Plan gather(int rank, int size, int root, size_t chunk_bytes, Layout outputs);
Plan scatter(int rank, int size, int root, size_t chunk_bytes, Layout inputs);

// to[p] is the region that goes to rank p, from[p] where what rank p sends goes.
Plan all_to_all(int rank, int size, const std::vector<Region>& to, const std::vector<Region>& from);

// Everybody tells everybody.
Plan barrier(int rank, int size);

Plan send_to(int rank, int size, int receiver, size_t bytes);
Plan receive_from(int rank, int size, int sender, size_t bytes);

// The regions of N chunks.
std::vector<Region> chunks_of(Room room, int size, size_t chunk_bytes, Layout layout);

}  // namespace smdist
