// SPDX-License-Identifier: Apache-2.0
// all_reduce in one step, for buffers that cost less than another step.
//
// Why input and output may be the same buffer: the sum is written when all that
// this rank had to send has left its memory.
#include "collectives/collectives.h"
#include "collectives/plan_builder.h"

namespace smdist {
namespace {

struct Contributions {
  std::vector<Region> shares;   // by rank
  std::vector<uint32_t> steps;  // that get ours to the others, and theirs to us
};

Contributions exchange(PlanBuilder& builder, int size, const Region& input) {
  Contributions all;
  all.shares.assign(static_cast<size_t>(size), input);
  for (const int peer : builder.rotated_peers()) all.steps.push_back(builder.send(peer, 0, input));
  for (const int peer : builder.rotated_peers()) {
    Region& share = all.shares[static_cast<size_t>(peer)];
    share = builder.scratch(input.bytes);
    all.steps.push_back(builder.receive(peer, 0, share));
  }
  return all;
}

// The partial sum of each host, in the order of hosts.
std::vector<Region> add_partials(PlanBuilder& builder, const Hosts& hosts, size_t bytes,
                                 const Contributions& all, std::vector<uint32_t>& done) {
  std::vector<Region> partials;
  for (int host = 0; host < hosts.count(); ++host) {
    std::vector<Region> shares;
    for (const int rank : hosts.ranks_on(host)) {
      shares.push_back(all.shares[static_cast<size_t>(rank)]);
    }
    partials.push_back(builder.scratch(bytes));
    done.push_back(builder.reduce(Stage::kPartial, std::move(shares), partials.back(), all.steps));
  }
  return partials;
}

}  // namespace

Plan all_reduce_at_once(int rank, const Hosts& hosts, size_t bytes, size_t widening) {
  PlanBuilder builder(rank, hosts.size());
  const Region output{Room::kOutput, 0, 0, bytes};
  Contributions all = exchange(builder, hosts.size(), {Room::kInput, 0, 0, bytes});
  if (hosts.count() == 1) {
    builder.reduce(Stage::kWhole, std::move(all.shares), output, std::move(all.steps));
    return builder.finish();
  }
  std::vector<uint32_t> done;
  std::vector<Region> partials = add_partials(builder, hosts, bytes * widening, all, done);
  builder.reduce(Stage::kFinal, std::move(partials), output, std::move(done));
  return builder.finish();
}

}  // namespace smdist
