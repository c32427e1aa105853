// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_topology.h"

#include <algorithm>
#include <map>

namespace smdist {
namespace {

bool is_flat(const std::vector<int>& host_of) {
  std::map<int, size_t> ranks;
  for (const int host : host_of) ++ranks[host];
  return ranks.size() == host_of.size();
}

}  // namespace

HostTopology::HostTopology(const std::vector<int>& host_of) : host_of_(host_of.size()) {
  const bool flat = is_flat(host_of);
  std::map<int, int> numbers;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    const int name = flat ? 0 : host_of[rank];
    const int host = numbers.insert({name, static_cast<int>(numbers.size())}).first->second;
    if (static_cast<size_t>(host) == ranks_.size()) ranks_.emplace_back();
    std::vector<int>& ranks = ranks_[static_cast<size_t>(host)];
    host_of_[rank] = host;
    local_index_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
}

int HostTopology::host_leader(int host, int towards) const {
  if (host == host_of(towards)) return towards;
  const std::vector<int>& ranks = ranks_on(host);
  const auto local_index = static_cast<size_t>(local_index_[static_cast<size_t>(towards)]);
  return ranks[local_index % ranks.size()];
}

}  // namespace smdist
