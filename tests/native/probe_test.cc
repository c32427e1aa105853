// SPDX-License-Identifier: Apache-2.0
// Tests of the values that the probe computes from the number of hosts.
#include "smdist/probe.h"

#include <algorithm>
#include <future>
#include <vector>

#include "check.h"
#include "cluster.h"

namespace {

using namespace smdist;
using namespace smdist::testing;

constexpr size_t kKiB = 1 << 10;

// Returns arriving_bytes as each rank has determined it.
std::vector<size_t> arriving_among(const std::vector<int>& hosts) {
  const int size = static_cast<int>(hosts.size());
  Cluster cluster(size, Network::kMemory, [&](Options& options) { options.hosts = hosts; });
  Fixed fixed;
  fixed.lanes = 1;
  fixed.chunk_bytes = 256 * kKiB;
  fixed.one_shot_bytes = fixed.single_owner_bytes = 0;
  std::vector<std::future<Findings>> found;
  for (int rank = 0; rank < size; ++rank) {
    found.push_back(std::async(std::launch::async, [&, rank] {
      return probe(cluster[rank], {rank, size, hosts}, fixed, std::chrono::seconds(30));
    }));
  }
  std::vector<size_t> arriving;
  for (auto& each : found) arriving.push_back(each.get().tuning.arriving_bytes);
  return arriving;
}

void each_connection_has_room_for_a_long_packet() {
  const std::vector<std::vector<int>> layouts = {{0, 1}, {0, 1, 2, 3, 4, 5}, {0, 0, 1, 2, 3, 3}};
  const std::vector<size_t> least = {224 * kKiB, 5 * 64 * kKiB, 2 * 3 * 64 * kKiB};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::vector<size_t> arriving = arriving_among(layouts[i]);
    CHECK(std::all_of(arriving.begin(), arriving.end(),
                      [&](size_t bytes) { return bytes == arriving[0] && bytes >= least[i]; }));
  }
}

}  // namespace

int main() { RUN(each_connection_has_room_for_a_long_packet); }
