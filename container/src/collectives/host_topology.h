// SPDX-License-Identifier: Apache-2.0
// Placement of the ranks of a group on hosts.
#pragma once

#include <cstddef>
#include <vector>

namespace smdist {

// Hierarchical algorithms combine the data of a host's ranks before sending them over the network,
// and send data to each host once. For every rank of another host, a host has a *host leader*: the
// one of its ranks that exchanges messages with that rank. The ranks of a host share this role
// evenly.
//
// If every host has one rank, or one host has all ranks, there is nothing to combine: then all
// ranks are treated as ranks of one host.
//
// Thread safety: immutable after construction.
class HostTopology final {
 public:
  // host_of: number of the host of each rank, by rank in the group.
  explicit HostTopology(const std::vector<int>& host_of);
  // Places all ranks on one host.
  explicit HostTopology(int size) : HostTopology(std::vector<int>(static_cast<size_t>(size), 0)) {}

  int size() const { return static_cast<int>(host_of_.size()); }
  // Return the number of hosts. They are numbered in the order of their lowest ranks.
  int count() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks_on(int host) const { return ranks_[static_cast<size_t>(host)]; }

  // Return the leader of a host for messages to and from the rank `towards`. On the host of that
  // rank, it is the rank itself.
  int host_leader(int host, int towards) const;

  // Return whether `to` receives directly from `from`: because it is on the same host, or because
  // it is the host leader.
  bool is_direct(int from, int to) const {
    return host_leader(host_of(to), from) == to || same_host(from, to);
  }
  bool same_host(int a, int b) const { return host_of(a) == host_of(b); }

 private:
  std::vector<int> host_of_;
  std::vector<int> local_index_;  // index of each rank among the ranks of its host
  std::vector<std::vector<int>> ranks_;
};

}  // namespace smdist
