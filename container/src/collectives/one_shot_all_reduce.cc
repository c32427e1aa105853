// SPDX-License-Identifier: Apache-2.0
// Plan of a one-shot all_reduce, for short buffers: sending the whole buffer to every rank costs
// less than a second step.
//
// Input and output may be the same buffer, because the sum is written after all sends of this rank
// are complete.
#include "collectives/collectives.h"
#include "collectives/plan_builder.h"

namespace smdist {
namespace {

// Contributions of all ranks, and the steps that exchange them.
struct Gathered {
  std::vector<Region> shares;   // contributions by rank
  std::vector<uint32_t> steps;  // the sends and receives of contributions
};

// Adds the steps by which every rank sends its input to all others.
Gathered exchange(PlanBuilder& builder, int size, const Region& input) {
  Gathered all;
  all.shares.assign(static_cast<size_t>(size), input);
  for (const int peer : builder.rotated_peers()) all.steps.push_back(builder.send(peer, 0, input));
  for (const int peer : builder.rotated_peers()) {
    Region& share = all.shares[static_cast<size_t>(peer)];
    share = builder.scratch(input.bytes);
    all.steps.push_back(builder.receive(peer, 0, share));
  }
  return all;
}

// Adds the steps that sum the contributions of each host, and appends them to `done`. Returns the
// regions of the partial sums, in the order of hosts.
std::vector<Region> add_partials(PlanBuilder& builder, const HostTopology& hosts, size_t bytes,
                                 const Gathered& all, std::vector<uint32_t>& done) {
  std::vector<Region> partials;
  for (int host = 0; host < hosts.count(); ++host) {
    std::vector<Region> shares;
    for (const int rank : hosts.ranks_on(host)) {
      shares.push_back(all.shares[static_cast<size_t>(rank)]);
    }
    partials.push_back(builder.scratch(bytes));
    done.push_back(
        builder.reduce(ReduceStage::kPartial, std::move(shares), partials.back(), all.steps));
  }
  return partials;
}

}  // namespace

Plan one_shot_all_reduce(int rank, const HostTopology& hosts, size_t bytes, size_t widening) {
  PlanBuilder builder(rank, hosts.size());
  const Region output{BufferKind::kOutput, 0, 0, bytes};
  Gathered all = exchange(builder, hosts.size(), {BufferKind::kInput, 0, 0, bytes});
  if (hosts.count() == 1) {
    builder.reduce(ReduceStage::kWhole, std::move(all.shares), output, std::move(all.steps));
    return builder.finish();
  }
  std::vector<uint32_t> done;
  std::vector<Region> partials = add_partials(builder, hosts, bytes * widening, all, done);
  builder.reduce(ReduceStage::kFinal, std::move(partials), output, std::move(done));
  return builder.finish();
}

}  // namespace smdist
